//! Ranks as threads of this process.

use std::net::TcpListener;
use std::thread;

use tandem_ranks::{Group, JoinOptions, RankEnvironment, RankError};

pub(crate) const VERSION: &str = "0.1.0";

/// A socket for rank 0, and its port.
pub(crate) fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Calls `body` on a thread for each of `size` ranks, and returns the results in rank order. `options` is called for each.
pub(crate) fn with_options<T: Send>(
    size: u32,
    options: impl Fn() -> JoinOptions,
    body: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    let (listener, port) = listener();
    let mut listener = Some(listener);
    let body = &body;
    thread::scope(|scope| {
        let start = |rank| {
            let environment = RankEnvironment::local(rank, size, port, 0, None);
            let options = JoinOptions { listener: listener.take(), ..options() };
            scope.spawn(move || body(Group::join(&environment, VERSION, options).unwrap()))
        };
        let ranks: Vec<_> = (0..size).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

pub(crate) fn with_ranks<T: Send>(size: u32, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    with_options(size, JoinOptions::default, body)
}

/// The number of a lost rank.
pub(crate) fn lost_rank(error: &RankError) -> Option<u32> {
    match error {
        RankError::Lost { rank, .. } => Some(*rank),
        _ => None,
    }
}
