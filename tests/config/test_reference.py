"""docs/config.md lists every key with its type, default and description, as the models have them."""

from reference import MARKER, PAGE, reference

from vitscale.config.messages import dotted_keys
from vitscale.config.run import RunConfig


def test_the_page_is_what_the_models_say():
    written = PAGE.read_text(encoding="utf-8").partition(MARKER)[2]
    assert written.strip() == reference().strip(), "run: python tests/config/reference.py"


def test_every_key_is_in_it():
    text = reference()
    for key in dotted_keys(RunConfig):
        assert f"`{key}`" in text or f"## {key}\n" in text
