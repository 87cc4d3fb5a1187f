"""What holds for every test: none asks the network.

A name that the hub might know would be asked for five times, for 23 seconds in all, where there is
no network, and where there is one a test would depend on it. transformers and huggingface_hub read
this variable when they are imported.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
