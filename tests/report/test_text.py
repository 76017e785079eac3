"""What pages say of code."""
from fedlib.core import losses
from fedlib.methods.drift import FedProx
from fedlib.report import text


def test_a_hook_is_shown_with_its_whole_class_folded_below():
    shown = text.source(FedProx.loss, losses.cosines).data
    hook, _, fold = shown.partition("<details>")
    assert hook.startswith("```python\ndef loss(self") and "def cosines(" in hook and "class FedProx" not in hook
    assert "The whole class <code>FedProx</code>" in fold and "class FedProx(FedAvg)" in fold
    assert "<details>" not in text.source(FedProx).data and "<details>" not in text.source(losses.cosines).data
