"""`python -m hccs.cli`, which `accelerate launch -m hccs.cli` needs."""

from hccs.cli import main

main()
