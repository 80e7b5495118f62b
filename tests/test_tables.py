"""Tables say whether they are confirmatory, by which plan, and refuse what is no table."""

import numpy as np
import pandas as pd
import pytest

from structmem.errors import InputError
from structmem.tables import show


def table(*analyses, note="no plan was stamped when these results were made"):
    rows = [
        {"model": "a", "arm": arm, "n_pairs": 40, "difference_pp": -5.0, "low_pp": -9.0, "high_pp": -1.0,
         "interval": "Tango", "harmed": "entry-1 entry-2", "analysis": analysis,
         "analysis_note": "" if analysis == "confirmatory" else note, "plan_hash": "0123456789ab"}
        for arm, analysis in zip(("fixed", "dynamic", "tree"), analyses, strict=False)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_one_kind_of_analysis_is_said_once_above_the_table():
    text = str(show(table("exploratory", "exploratory")))
    assert text.count("exploratory") == 1
    assert (
        "exploratory (no plan was stamped when these results were made), plan 0123456789ab, 95 % intervals in brackets"
        in text.splitlines()
    )
    assert "[1]" not in text and "notes" not in text


def test_it_is_said_also_of_chosen_columns_and_of_one_row():
    for shown in (show(table("confirmatory"), ["arm", "difference_pp"]), show(table("confirmatory"))):
        assert str(shown).splitlines()[0] == "confirmatory, plan 0123456789ab, 95 % intervals in brackets"


def test_mixed_tables_have_a_column_and_a_note_for_the_exploratory_rows():
    lines = str(show(table("confirmatory", "exploratory", "exploratory"))).splitlines()
    assert lines[0].endswith("model a") and lines[1] == "plan 0123456789ab, 95 % intervals in brackets"
    assert "confirmatory" in lines[4] and "[1]" not in lines[4]
    assert "exploratory" in lines[5] and lines[5].endswith("[1]")
    assert lines[-1] == "[1] no plan was stamped when these results were made"


def test_exploratory_rows_of_two_kinds_keep_their_notes():
    both = table("exploratory", "exploratory")
    both.loc[1, "analysis_note"] = "not a planned contrast"
    text = str(show(both))
    assert text.splitlines()[1] == "exploratory, plan 0123456789ab, 95 % intervals in brackets"
    assert "[1] no plan was stamped" in text and "[2] not a planned contrast" in text


def test_the_caption_is_two_paragraphs_of_escaped_html():
    named = table("exploratory", "exploratory", note="<b>")
    assert (
        "<p>model a</p><p>exploratory (&lt;b&gt;), plan 0123456789ab, 95 % intervals in brackets</p>"
        in show(named)._repr_html_()
    )


@pytest.mark.parametrize("thing", [None, [1], "rates"])
def test_what_is_no_table_is_refused_by_its_type(thing):
    with pytest.raises(InputError, match=type(thing).__name__):
        show(thing)


def test_columns_of_ones_own_are_shown_whatever_they_hold():
    own = pd.DataFrame({"a": [np.array([1]), [2]], "b": [np.str_("x"), np.bool_(True)], "c": [{}, None]})
    assert "x" in str(show(own)) and "yes" in str(show(own))
    for bad in (own.rename(columns={"a": 3}), pd.concat([own, own[["b"]]], axis=1)):
        with pytest.raises(InputError, match="have names"):
            show(bad)
    with pytest.raises(InputError, match="list of column names"):
        show(own, 3)


def test_rows_that_differ_in_it_show_it_whatever_columns_were_chosen():
    assert show(table("confirmatory", "exploratory"), ["arm"]).header[:2] == ["arm", "analysis"]
    assert show(table("exploratory", "exploratory"), ["arm"]).header == ["arm"]


def test_an_interval_is_on_its_own_side_of_zero_and_only_where_there_is_one():
    near = table("confirmatory").assign(low_pp=-20.2, high_pp=-0.02)
    assert "[−20.2, −0.02]" in str(show(near, ["difference_pp"]))
    none = near.assign(low_pp=float("nan"), high_pp=float("nan"))
    assert "brackets" not in str(show(none, ["difference_pp"]))
