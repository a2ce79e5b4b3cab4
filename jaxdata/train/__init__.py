"""The small trainer that `jaxdata train` and `jaxdata demo` use: plain JAX, optax and Orbax.

It is a complete program to read, not a framework: a decoder-only transformer whose params are a
dict, one jitted step, data-parallel over every device, exact after any crash. `import jaxdata`
imports none of it.
"""

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
