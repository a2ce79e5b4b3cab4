"""A server of buckets for other programs: prints the environment that leads them to it.

python -m tests.storage.servers --scheme gs --folder data
"""

from tests.storage.servers.server import main

main()
