"""The small trainer that `jaxdata train` and `jaxdata demo` use: plain JAX, optax and Orbax.

It is a complete program to read, not a framework: a decoder-only transformer whose params are a
dict, one jitted step, data-parallel over every device, exact after any crash. `import jaxdata`
imports none of it. In the order in which data passes:

settings    the `train:` section of a config
devices     the devices of a run, in one process or many
trainer     the loop: step, log, evaluate, checkpoint
interrupts  Ctrl-C: what was trained is saved
model       params and logits
loss        cross entropy as sums and counts
optimizer   AdamW, and the one jitted step
evaluate    bits per byte of the validation rows
checkpoint  model and loader, saved together
output_folder  where these are kept, a bucket too
progress    the metrics of steps, without holding up the devices
log         one JSON object a line
digests     a fingerprint of the rows of each batch
"""

from __future__ import annotations

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
