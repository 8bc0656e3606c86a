from hypothesis import given
from hypothesis import strategies as st

from examples.llm_server.tokens import EOS, Detokenizer, encode


@given(st.text())
def test_text_comes_back_from_its_tokens(text: str):
    tokens = encode(text)
    detokenizer = Detokenizer()
    assert "".join(detokenizer.feed(t, last=i == len(tokens) - 1) for i, t in enumerate(tokens)) == text


def test_half_a_surrogate_pair_is_a_question_mark():
    assert encode("a\ud800b") == list(b"a?b")


def test_a_character_appears_with_its_last_byte():
    detokenizer = Detokenizer()
    assert [detokenizer.feed(byte) for byte in encode("é!")] == ["", "é", "!"]


def test_ids_that_are_no_bytes_are_spelt_out():
    assert Detokenizer().feed(EOS) == "<256>"
    assert Detokenizer().feed(999) == "<999>"


def test_an_unfinished_character_is_given_up_when_it_cannot_be_finished():
    detokenizer = Detokenizer()
    assert [detokenizer.feed(t) for t in (0xC3, 300, ord("a"))] == ["", "\N{REPLACEMENT CHARACTER}<300>", "a"]
    assert Detokenizer().feed(0xC3, last=True) == "\N{REPLACEMENT CHARACTER}"
