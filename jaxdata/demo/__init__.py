"""`jaxdata demo`: from raw text to an exactly resumed training run, in two minutes.

walk    the seven stages, in order
corpus  real text, gathered from this machine
runs    training processes, one of them killed
proof   every trained row, made again by other hosts
"""
