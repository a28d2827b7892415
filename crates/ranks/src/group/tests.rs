//! Ranks as threads of this process, of which one dies without a word.

use std::net::TcpListener;
use std::sync::Barrier;
use std::thread;

use super::*;

fn with_ranks<T: Send>(size: u32, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut listener = Some(listener);
    let body = &body;
    thread::scope(|scope| {
        let start = |rank| {
            let environment = RankEnvironment::local(rank, size, port, 0, None);
            let options = JoinOptions { listener: listener.take(), ..JoinOptions::default() };
            scope.spawn(move || body(Group::join(&environment, "1", options).unwrap()))
        };
        let ranks: Vec<_> = (0..size).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_group_is_shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Group>();
}

#[test]
fn a_rank_that_dies_is_named_on_every_other_rank_whatever_they_do() {
    for (size, victim) in [(2, 0), (2, 1), (3, 0), (3, 2), (4, 1)] {
        // A death may still fail a collective whose result is on its way: all ranks have theirs first.
        let started = Barrier::new(size as usize);
        let errors = with_ranks(size, |group| {
            let rank = group.world().rank;
            group.barrier("start").unwrap();
            started.wait();
            if rank == victim {
                group.vanish();
                return None;
            }
            // Odd ranks are in an all-reduce, even ones poll.
            let error = match rank % 2 {
                1 => group.all_reduce("gradients", &mut [0.0; 1000]).unwrap_err(),
                _ => group.shared.wait_for_failure(Duration::from_secs(60)).unwrap(),
            };
            assert_eq!(group.failure(), Some(error.clone()));
            assert_eq!(group.barrier("later"), Err(error.clone()));
            Some(error)
        });
        for (rank, error) in errors.into_iter().enumerate() {
            match error {
                Some(RankError::Lost { rank, .. }) => assert_eq!(rank, victim),
                Some(other) => panic!("{size} ranks, {victim} died, rank {rank}: {other}"),
                None => assert_eq!(rank as u32, victim),
            }
        }
    }
}

#[test]
fn a_part_that_is_too_large_ends_the_group_and_names_the_rank() {
    let errors = with_ranks(2, |group| {
        let large = vec![0; crate::MAX_PAYLOAD_BYTES + 1];
        let mine = if group.world().rank == 1 { &large[..] } else { &[] };
        group.all_gather("losses", mine).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, RankError::Protocol { rank: 1, .. }), "{error}");
    }
}

#[test]
fn a_panic_ends_the_group_for_everyone() {
    let errors = with_ranks(2, |group| {
        if group.world().rank == 0 {
            return group.barrier("end").err();
        }
        let panic = thread::scope(|scope| {
            let body = || {
                let _group = group;
                panic!("injected");
            };
            scope.spawn(body).join().is_err()
        });
        assert!(panic);
        None
    });
    assert_eq!(errors[0], Some(RankError::Aborted { rank: 1, reason: "its program panicked".into() }));
}
