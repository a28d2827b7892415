//! How a group ends: by an abort, a goodbye, or a rank that hangs.

use std::sync::Barrier;
use std::time::Duration;

use tandem_ranks::{Group, JoinOptions, RankError};

use crate::support::{with_options, with_ranks};

#[test]
fn an_abort_ends_blocked_and_later_calls_of_every_rank() {
    for culprit in [0, 2] {
        let errors = with_ranks(3, |group| {
            if group.world().rank == culprit {
                group.abort("the loss is not finite");
            } else {
                group.barrier("step").unwrap_err();
            }
            let failure = group.failure().unwrap();
            assert_eq!(group.all_reduce("gradients", &mut [1.0]), Err(failure.clone()));
            assert_eq!(group.agree("settings", &[]), Err(failure.clone()));
            group.abort("another reason");
            assert_eq!(group.failure(), Some(failure.clone()));
            failure
        });
        let expected = RankError::Aborted { rank: culprit, reason: "the loss is not finite".into() };
        assert_eq!(errors, [expected.clone(), expected.clone(), expected]);
    }
}

#[test]
fn a_large_all_reduce_ends_by_an_abort_too() {
    let errors = with_ranks(3, |group| match group.world().rank {
        1 => {
            group.abort("stop");
            group.failure()
        }
        _ => group.all_reduce("gradients", &mut vec![0.0; 4 << 20]).err(),
    });
    assert!(errors.iter().all(|error| *error == Some(RankError::Aborted { rank: 1, reason: "stop".into() })));
}

#[test]
fn ranks_that_have_made_the_same_calls_leave_in_any_order() {
    for last in 0..3 {
        let left = Barrier::new(3);
        with_ranks(3, |group| {
            group.barrier("end").unwrap();
            if group.world().rank == last {
                // Everybody else has left, and that is no failure.
                left.wait();
                assert_eq!(group.failure(), None);
                group.leave();
            } else {
                group.leave();
                left.wait();
            }
        });
    }
}

#[test]
fn a_rank_that_left_is_named_by_ranks_that_need_it() {
    for leaver in [0, 1] {
        let stepped = Barrier::new(3);
        let errors = with_ranks(3, |group| {
            group.barrier("step").unwrap();
            stepped.wait();
            if group.world().rank == leaver {
                group.leave();
                return None;
            }
            group.barrier("next step").err()
        });
        for (rank, error) in (0..).zip(errors) {
            assert_eq!(error, (rank != leaver).then_some(RankError::Left { rank: leaver }));
        }
    }
}

/// A timeout that threads of a busy machine do not reach by chance.
const SHORT: Duration = Duration::from_secs(2);

/// Polls, as a caller does that is in no collective.
fn wait_for_failure(group: &Group) -> RankError {
    loop {
        match group.failure() {
            Some(failure) => return failure,
            None => std::thread::yield_now(),
        }
    }
}

fn check_hung(size: u32, hung: &[u32]) {
    let options = || JoinOptions { collective_timeout: SHORT, ..JoinOptions::default() };
    let done = Barrier::new(size as usize);
    let errors = with_options(size, options, |group| {
        let error = (!hung.contains(&group.world().rank)).then(|| group.barrier("epoch").unwrap_err());
        // A rank that hangs stays in the group until the others have given up.
        done.wait();
        error.unwrap_or_else(|| wait_for_failure(&group))
    });
    for error in errors {
        match error {
            RankError::TimedOut { ranks, what, waited } => {
                assert_eq!((&ranks[..], what.as_str()), (hung, "epoch"));
                assert!(waited >= SHORT - Duration::from_millis(1), "{waited:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ranks_that_hang_are_named_on_every_rank() {
    check_hung(4, &[1, 3]);
}

#[test]
fn rank_0_that_hangs_is_named_by_its_own_control_threads() {
    check_hung(3, &[0]);
}

#[test]
fn rank_0_and_another_that_hang_are_both_named() {
    check_hung(3, &[0, 1]);
}
