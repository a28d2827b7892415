//! Who is admitted to a group, and who is not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use tandem_ranks::{EnvironmentError, Group, JoinOptions, RankEnvironment, RankError, Token, World};

use crate::support::{VERSION, listener, lost_rank};

fn environment(rank: u32, port: u16) -> RankEnvironment {
    RankEnvironment::local(rank, 2, port, 1, Some(Token::new("secret").unwrap()))
}

/// Starts rank 0 of a world of two, calls `intrude` with its port, and then lets rank 1 join. Returns what rank 0 dropped.
fn check_group_forms(intrude: impl FnOnce(u16) + Send) -> u64 {
    let (listener, port) = listener();
    thread::scope(|scope| {
        let rank_0 = scope.spawn(move || {
            let options = JoinOptions { listener: Some(listener), ..JoinOptions::default() };
            let group = Group::join(&environment(0, port), VERSION, options).unwrap();
            group.barrier("end").unwrap();
            group.num_rejected()
        });
        intrude(port);
        let group = Group::join(&environment(1, port), VERSION, JoinOptions::default()).unwrap();
        group.barrier("end").unwrap();
        rank_0.join().unwrap()
    })
}

fn refusal(environment: &RankEnvironment, version: &str) -> String {
    match Group::join(environment, version, JoinOptions::default()) {
        Err(RankError::Refused { reason }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("joined"),
    }
}

#[test]
fn whoever_does_not_belong_to_the_run_learns_why_and_the_group_forms() {
    let rejected = check_group_forms(|port| {
        let check = |environment: RankEnvironment, version: &str, expected: &str| {
            assert_eq!(refusal(&environment, version), expected);
        };
        let base = || environment(1, port);
        check(RankEnvironment { token: Some(Token::new("Secret").unwrap()), ..base() }, VERSION, "wrong token");
        check(RankEnvironment { token: None, ..base() }, VERSION, "wrong token");
        let version = "it is version 0.2.0 and rank 0 is 0.1.0. Install the same version on every machine";
        check(base(), "0.2.0", version);
        let restart = "it is of restart 0 and rank 0 of restart 1. Start all ranks together";
        check(RankEnvironment { restart: 0, ..base() }, VERSION, restart);
        let size = "it is one of 5 ranks and rank 0 one of 2. Set the same WORLD_SIZE";
        let world = World { rank: 4, size: 5, local_rank: 4, local_size: 5 };
        check(RankEnvironment { world, ..base() }, VERSION, size);
    });
    assert_eq!(rejected, 5);
}

#[test]
fn a_second_process_with_the_same_rank_is_refused() {
    let (listener, port) = listener();
    thread::scope(|scope| {
        let join = |rank| Group::join(&RankEnvironment::local(rank, 3, port, 0, None), VERSION, JoinOptions::default());
        let rank_0 = scope.spawn(move || {
            let options = JoinOptions { listener: Some(listener), ..JoinOptions::default() };
            Group::join(&RankEnvironment::local(0, 3, port, 0, None), VERSION, options).unwrap().barrier("end")
        });
        let (first, second) = (scope.spawn(move || join(1)), scope.spawn(move || join(1)));
        // One of them is refused, while the other one waits for rank 2.
        while !first.is_finished() && !second.is_finished() {
            thread::yield_now();
        }
        let group_2 = scope.spawn(move || join(2).unwrap().barrier("end"));
        let joined = [first.join().unwrap(), second.join().unwrap()];
        let refused = joined.iter().filter(|joined| match joined {
            Ok(group) => group.barrier("end").is_err(),
            Err(RankError::Refused { reason }) => reason == "rank 1 is already there. Give every process its own rank",
            Err(_) => false,
        });
        assert_eq!(refused.count(), 1);
        assert_eq!((rank_0.join().unwrap(), group_2.join().unwrap()), (Ok(()), Ok(())));
    });
}

#[test]
fn garbage_is_dropped_and_counted() {
    let rejected = check_group_forms(|port| {
        let garbage: [&[u8]; 4] = [b"GET / HTTP/1.1\r\n\r\n", &[0xFF; 5000], &[0; 64], b"\x08\0\0\0TNDMRANK"];
        for bytes in garbage {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            // Rank 0 may have dropped the connection before all of it is written.
            let _ = stream.write_all(bytes);
            // The answer is the end of the connection.
            assert!(!matches!(stream.read(&mut [0; 64]), Ok(1..)));
        }
    });
    assert_eq!(rejected, 4);
}

#[test]
fn silent_connections_delay_nobody() {
    let mut silent = Vec::new();
    check_group_forms(|port| silent.extend((0..20).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap())));
}

#[test]
fn more_silent_connections_than_handshakes_do_not_keep_ranks_out() {
    let mut silent = Vec::new();
    let rejected = check_group_forms(|port| {
        silent.extend((0..100).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()));
    });
    assert!(rejected >= 36, "{rejected}");
}

#[test]
fn a_rank_that_dies_before_all_are_there_may_come_back() {
    let (listener, port) = listener();
    thread::scope(|scope| {
        let rank_0 = scope.spawn(move || {
            let options = JoinOptions { listener: Some(listener), ..JoinOptions::default() };
            Group::join(&RankEnvironment::local(0, 3, port, 0, None), VERSION, options).unwrap().barrier("end")
        });
        let join = |rank, timeout| {
            let options = JoinOptions { join_timeout: timeout, ..JoinOptions::default() };
            Group::join(&RankEnvironment::local(rank, 3, port, 0, None), VERSION, options)
        };
        // The first process says only that it is rank 1, and dies.
        let mut first = TcpStream::connect(("127.0.0.1", port)).unwrap();
        first.write_all(&hello_of_rank_1()).unwrap();
        first.read_exact(&mut [0; 17]).unwrap();
        drop(first);
        let again = scope.spawn(move || join(1, Duration::from_secs(60)).unwrap().barrier("end"));
        assert_eq!(join(2, Duration::from_secs(60)).unwrap().barrier("end"), Ok(()));
        assert_eq!((again.join().unwrap(), rank_0.join().unwrap()), (Ok(()), Ok(())));
    });
}

/// The first frame on the data connection of rank 1 of 3, without a token.
fn hello_of_rank_1() -> Vec<u8> {
    let mut content = b"TNDMRANK".to_vec();
    content.extend_from_slice(&1u32.to_le_bytes());
    content.push(0);
    [1u32, 3, 0].iter().for_each(|number| content.extend_from_slice(&number.to_le_bytes()));
    content.extend_from_slice(&(VERSION.len() as u32).to_le_bytes());
    content.extend_from_slice(VERSION.as_bytes());
    content.extend_from_slice(&0u32.to_le_bytes());
    [&(content.len() as u32).to_le_bytes()[..], &content].concat()
}

#[test]
fn ranks_that_are_missing_are_named_on_every_rank() {
    let (listener, port) = listener();
    let join = |rank, listener| {
        let join_timeout = Duration::from_millis(1500);
        let options = JoinOptions { join_timeout, listener, ..JoinOptions::default() };
        Group::join(&RankEnvironment::local(rank, 4, port, 0, None), VERSION, options).err().unwrap()
    };
    let errors = thread::scope(|scope| {
        let rank_1 = scope.spawn(|| join(1, None));
        [join(0, Some(listener)), rank_1.join().unwrap()]
    });
    for error in errors {
        assert!(matches!(&error, RankError::NotAllJoined { missing, .. } if missing[..] == [2, 3]), "{error}");
    }
}

#[test]
fn without_rank_0_the_error_names_its_address() {
    let (listener, port) = listener();
    drop(listener);
    let options = JoinOptions { join_timeout: Duration::from_millis(100), ..JoinOptions::default() };
    let error = Group::join(&environment(1, port), VERSION, options).err().unwrap();
    assert!(
        matches!(&error, RankError::Unreachable { address, .. } if *address == format!("127.0.0.1:{port}")),
        "{error}"
    );
}

#[test]
fn a_rank_may_start_before_rank_0() {
    let (probe, port) = listener();
    thread::scope(|scope| {
        let early = scope
            .spawn(move || Group::join(&environment(1, port), VERSION, JoinOptions::default()).unwrap().barrier("end"));
        // The first attempts of rank 1 end without an answer.
        drop(probe.accept().unwrap());
        let options = JoinOptions { listener: Some(probe), ..JoinOptions::default() };
        let group = Group::join(&environment(0, port), VERSION, options).unwrap();
        assert_eq!((group.barrier("end"), early.join().unwrap()), (Ok(()), Ok(())));
    });
}

#[test]
fn another_program_at_the_port_is_not_rank_0() {
    let (listener, port) = listener();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            // Closing with unread bytes would destroy the answer.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = Group::join(&environment(1, port), VERSION, JoinOptions::default()).err().unwrap();
        assert!(matches!(error, RankError::NotRankZero { .. }), "{error}");
    });
}

#[test]
fn rank_0_that_dies_before_all_are_there_is_lost() {
    let (listener, port) = listener();
    thread::scope(|scope| {
        let rank_1 = scope.spawn(move || {
            let environment = RankEnvironment::local(1, 3, port, 0, None);
            Group::join(&environment, VERSION, JoinOptions::default()).err().unwrap()
        });
        // Rank 0 admits both connections of rank 1, and dies.
        let welcome = [&17u32.to_le_bytes()[..], b"TNDMRANK", &1u32.to_le_bytes(), &[0], &0u32.to_le_bytes()].concat();
        let admitted = [(); 2].map(|()| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 38]).unwrap();
            stream.write_all(&welcome).unwrap();
            stream
        });
        drop((admitted, listener));
        assert_eq!(lost_rank(&rank_1.join().unwrap()), Some(0));
    });
}

#[test]
fn ranks_on_several_machines_need_a_token() {
    let world = World { rank: 0, size: 2, local_rank: 0, local_size: 1 };
    let environment = RankEnvironment { world, ..RankEnvironment::local(0, 2, 1, 0, None) };
    let error = Group::join(&environment, VERSION, JoinOptions::default()).err().unwrap();
    assert_eq!(error, RankError::Environment(EnvironmentError::NoToken { size: 2, local_size: 1 }));
}

#[test]
fn a_world_of_one_opens_no_socket() {
    // Nobody can listen at port 1 without privileges.
    let group = Group::join(&RankEnvironment::local(0, 1, 1, 0, None), VERSION, JoinOptions::default()).unwrap();
    assert_eq!(group.all_gather("x", b"a").unwrap(), [b"a"]);
    assert_eq!(group.broadcast("x", b"a".to_vec()).unwrap(), b"a");
    assert_eq!((group.barrier("x"), group.agree("x", &[])), (Ok(()), Ok(())));
    let mut values = [1.0, f32::MIN_POSITIVE / 2.0, -0.0];
    group.all_reduce("x", &mut values).unwrap();
    assert_eq!(values.map(f32::to_bits), [1.0, f32::MIN_POSITIVE / 2.0, -0.0].map(f32::to_bits));
    group.abort("enough");
    assert!(group.barrier("x").is_err());
}
