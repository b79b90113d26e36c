"""The frozen network: `with frozen(model, device) as network` gives the model's logits as a function of its
input, fast where that has been proven to be the model.

These names are the room's door: whoever is outside imports them from here (pyproject.toml, import-linter).
"""

from cfol_fast.frozen.autotune import choices
from cfol_fast.frozen.names import Named
from cfol_fast.frozen.network import (
    Network,
    agree,
    bare,
    count_attacks,
    decide_for_all,
    evaluation_mode,
    frozen,
    how,
    minds_layout,
)
from cfol_fast.frozen.outputs import described, logits_in, precision_told
from cfol_fast.frozen.proof import paused, put_back_random_states, random_states
from cfol_fast.frozen.python_state import fingerprint, named
from cfol_fast.frozen.tracing import adopt_proof, proof_outcome

__all__ = [
    "Named",
    "Network",
    "adopt_proof",
    "agree",
    "bare",
    "choices",
    "count_attacks",
    "decide_for_all",
    "described",
    "evaluation_mode",
    "fingerprint",
    "frozen",
    "how",
    "logits_in",
    "minds_layout",
    "named",
    "paused",
    "precision_told",
    "proof_outcome",
    "put_back_random_states",
    "random_states",
]
