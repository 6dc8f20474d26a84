from hewfl.theory.case import Case
from hewfl.theory.systems import System


def test_the_start_is_the_cap_and_a_minibatch_gradient() -> None:
    system = System([1.0, 2.0], 3.0, [2, 4], [8, 16], [1.0, 5.0])
    case = Case(system)
    assert case.start[0].tolist() == [4.5, 9.0]
    assert case.start[1].tolist() == [5 / 16] * 2
