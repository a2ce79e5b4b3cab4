"""Numbers of a report drawn, by matplotlib, as SVG in the colours of the page.

drawing           what charts share: colours, axes
svg               matplotlib's SVG without styles, in variables of the page
length_chart      lengths
bar_charts        strategies, epochs, bytes a token
curriculum_chart  shares over tokens
chart_choice      which charts a report has, in which colours
"""
