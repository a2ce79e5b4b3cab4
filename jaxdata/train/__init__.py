"""The small trainer that `jaxdata train` and `jaxdata demo` use: plain JAX, optax and Orbax.

It is a complete program to read, not a framework: a decoder-only transformer whose params are a
dict, one jitted step, data-parallel over every device, exact after any crash. Nothing here is
imported by `import jaxdata`.
"""
