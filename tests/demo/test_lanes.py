from pathlib import Path

from e2e import lanes

FOLDER = Path(lanes.__file__).parent
LISTED = [file for files in lanes.LANES.values() for file in files]


def test_each_listed_file_is_there_and_in_one_lane() -> None:
    assert len(set(LISTED)) == len(LISTED)
    assert set(LISTED) <= {path.stem for path in FOLDER.glob("test_*.py")}


def test_files_of_a_lane_follow_each_other_in_its_order() -> None:
    alphabetical = sorted(LISTED)
    assert sorted(alphabetical, key=lanes.order) == LISTED
    assert {lanes.lane(file) for file in lanes.LANES["changes"]} == {"changes"}


def test_a_file_that_is_not_listed_has_a_lane_of_its_own_after_all_others() -> None:
    assert lanes.lane("test_story_new") == "test_story_new"
    assert max("test_story_new", LISTED[-1], key=lanes.order) == "test_story_new"
