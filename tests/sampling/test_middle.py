"""The middle launch of every kernel."""

from programs import program

from sampling.middle import Middle


def test_a_launch_of_every_kernel_is_taken():
    profile, true = program(0)
    selection = Middle().select(profile)
    assert len(selection.units) == len(set(profile.kernels.tolist()))
    assert selection.estimate(list(true[selection.units])).covers(true.sum())
