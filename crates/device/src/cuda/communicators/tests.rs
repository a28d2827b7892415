//! The calls of NCCL that communicators make, against a fake library.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use tandem_events::Role;

use super::super::fake::{self, calls, inject_async_error, inject_result, keep_nccl_busy, set_variable};
use super::super::{CudaDriver, api};
use crate::arena::{Arena, ArenaSpec, Block};
use crate::communicator::{Communicator, CommunicatorId};
use crate::device::Device;
use crate::error::DeviceError;
use crate::machine::Machine;

/// Of waits that end before it.
const LONG: Duration = Duration::from_secs(600);
/// Of waits that end with it.
const SHORT: Duration = Duration::from_millis(30);
/// With the handle of the fake's communicators.
const ABORT: &str = "ncclCommAbort 80";
const FOREVER: u32 = u32::MAX;

/// The first of the fake's cards, and an empty log.
fn opened() -> Device {
    opened_on(fake::driver(), LONG)
}

fn opened_on(mut driver: CudaDriver, teardown_deadline: Duration) -> Device {
    driver.teardown_deadline = teardown_deadline;
    let device = Machine::with_driver(Arc::new(driver)).open(0).unwrap();
    calls();
    device
}

fn join(device: &Device, deadline: Duration) -> Result<Communicator, DeviceError> {
    Communicator::join(device, &CommunicatorId::from_bytes([9; 128]), 1, 2, deadline)
}

/// Joined, with an empty log.
fn joined(device: &Device) -> Communicator {
    let communicator = join(device, LONG).unwrap();
    calls();
    communicator
}

/// The calls of NCCL since the last look, other than polls.
fn nccl_calls() -> Vec<String> {
    let is_ours = |call: &String| call.starts_with("nccl") && !call.starts_with("ncclCommGetAsyncError");
    calls().into_iter().filter(is_ours).collect()
}

/// Memory at 0x5000, the address of the fake's first allocation.
fn block(device: &Device, bytes: u64) -> Block {
    let block = Arena::reserve(device, ArenaSpec::new(Role::Model, 1 << 20)).unwrap().take("gradients", bytes).unwrap();
    calls();
    block
}

#[test]
fn a_rank_joins_with_the_id_without_blocking_and_polls_until_all_have_joined() {
    let device = opened();
    let id = Communicator::new_id(device.machine()).unwrap();
    assert_eq!((id.to_bytes(), calls()), ([9; 128], vec!["ncclGetUniqueId".to_owned()]));
    keep_nccl_busy(3);
    let communicator = join(&device, LONG).unwrap();
    let poll = "ncclCommGetAsyncError 80";
    assert_eq!(calls(), ["cuEventCreate 3", "ncclCommInitRankConfig 1/2 id 9 0", poll, poll, poll, poll]);
    assert_eq!(communicator.describe(), "NCCL 2.28.9, Ring");
    assert_eq!((communicator.rank(), communicator.size()), (1, 2));
}

#[test]
fn joining_ranks_that_never_come_ends_at_the_deadline_and_is_aborted() {
    let device = opened();
    keep_nccl_busy(FOREVER);
    let began = Instant::now();
    let error = join(&device, SHORT).unwrap_err();
    assert!(began.elapsed() >= SHORT && began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    let text = error.to_string();
    for part in ["rank 1 of 2 on GPU 0", "ncclCommInitRankConfig", "within 30ms", "its log says why"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let log = calls();
    assert_eq!(log.iter().filter(|call| *call == ABORT).count(), 1, "{log:?}");
    assert_eq!(log.last().unwrap(), "cuEventDestroy_v2 20", "nothing is left");
}

#[test]
fn a_refused_communicator_is_reported_with_the_messages_of_nccl_and_there_is_nothing_to_abort() {
    let device = opened();
    inject_result("ncclCommInitRankConfig", 5);
    let error = join(&device, LONG).unwrap_err();
    let DeviceError::Communicator { status, detail, .. } = &error else { panic!("{error}") };
    assert_eq!((status.as_str(), detail.as_str()), ("an error of NCCL (5)", "the last message"));
    assert_eq!(nccl_calls(), ["ncclCommInitRankConfig 1/2 id 9 0"]);
}

#[test]
fn a_sum_is_queued_in_buckets_in_place_and_each_is_on_the_stream_before_the_next() {
    let device = opened();
    let (communicator, stream, memory) = (joined(&device), device.stream(true).unwrap(), block(&device, 40));
    keep_nccl_busy(1);
    communicator.all_reduce(&stream, memory.view(), 16).unwrap();
    let expected = [
        "ncclAllReduce 0x5000 0x5000 4 7 0 80 10",
        "ncclCommGetAsyncError 80",
        "ncclCommGetAsyncError 80",
        "cuEventRecord 20 10",
        "ncclAllReduce 0x5010 0x5010 4 7 0 80 10",
        "cuEventRecord 20 10",
        "ncclAllReduce 0x5020 0x5020 2 7 0 80 10",
        "cuEventRecord 20 10",
    ];
    assert_eq!(calls(), expected);
    communicator.all_reduce(&stream, memory.part(8, 16), 1 << 20).unwrap();
    assert_eq!(nccl_calls(), ["ncclAllReduce 0x5008 0x5008 4 7 0 80 10"]);
}

#[test]
fn a_broadcast_copies_bytes_from_its_root() {
    let device = opened();
    let (communicator, stream, memory) = (joined(&device), device.stream(true).unwrap(), block(&device, 7));
    communicator.broadcast(&stream, memory.view(), 1).unwrap();
    communicator.broadcast(&stream, memory.part(0, 0), 1).unwrap();
    assert_eq!(nccl_calls(), ["ncclBroadcast 0x5000 0x5000 7 1 1 80 10"]);
}

#[test]
fn a_collective_is_queued_in_the_context_of_its_card() {
    let device = opened();
    let (communicator, stream, memory) = (joined(&device), device.stream(true).unwrap(), block(&device, 8));
    fake::switch_context(7);
    communicator.all_reduce(&stream, memory.view(), 8).unwrap();
    assert_eq!(calls()[..2], ["cuCtxSetCurrent 101", "ncclAllReduce 0x5000 0x5000 2 7 0 80 10"]);
}

#[test]
fn a_collective_that_other_ranks_do_not_queue_fails_at_the_deadline_and_later_calls_fail_at_once() {
    let device = opened();
    let communicator = join(&device, SHORT).unwrap();
    let (stream, memory) = (device.stream(true).unwrap(), block(&device, 8));
    keep_nccl_busy(FOREVER);
    let error = communicator.all_reduce(&stream, memory.view(), 4).unwrap_err();
    assert!(error.to_string().contains("not all ranks took part"), "{error}");
    assert_eq!(nccl_calls(), ["ncclAllReduce 0x5000 0x5000 1 7 0 80 10"], "the second bucket is not queued");
    let error = communicator.all_reduce(&stream, memory.view(), 4).unwrap_err();
    assert!(error.to_string().contains("an earlier call failed"), "{error}");
    drop(communicator);
    assert_eq!(nccl_calls(), [ABORT]);
}

#[test]
fn an_asynchronous_error_is_reported_by_a_check_and_the_communicator_is_aborted_not_destroyed() {
    let device = opened();
    let communicator = joined(&device);
    communicator.check().unwrap();
    keep_nccl_busy(1);
    communicator.check().unwrap();
    inject_async_error(6);
    let error = communicator.check().unwrap_err();
    let DeviceError::Communicator { call, status, .. } = &error else { panic!("{error}") };
    assert_eq!((*call, status.as_str()), ("ncclCommGetAsyncError", "an error of NCCL (6)"));
    assert!(communicator.check().is_err(), "the error stays");
    drop(communicator);
    assert_eq!(nccl_calls(), [ABORT]);
}

#[test]
fn dropping_finalises_and_destroys_once_and_the_event_too() {
    let device = opened();
    let communicator = joined(&device);
    keep_nccl_busy(1);
    drop(communicator);
    let expected = [
        "cuEventQuery 20",
        "ncclCommFinalize 80",
        "ncclCommGetAsyncError 80",
        "ncclCommGetAsyncError 80",
        "ncclCommDestroy 80",
        "cuEventDestroy_v2 20",
    ];
    assert_eq!(calls(), expected);
}

#[test]
fn collectives_that_stay_in_flight_are_aborted_at_the_deadline() {
    let device = opened_on(fake::driver(), SHORT);
    let communicator = joined(&device);
    inject_result("cuEventQuery", api::NOT_READY);
    drop(communicator);
    assert_eq!(nccl_calls(), [ABORT]);
}

#[test]
fn a_communicator_that_does_not_finalise_is_aborted_at_the_deadline() {
    let device = opened_on(fake::driver(), SHORT);
    let communicator = joined(&device);
    keep_nccl_busy(FOREVER);
    drop(communicator);
    assert_eq!(nccl_calls(), ["ncclCommFinalize 80", ABORT]);
}

#[test]
fn after_an_abort_every_call_fails_and_nothing_is_destroyed_again() {
    let device = opened();
    let (communicator, stream, memory) = (joined(&device), device.stream(true).unwrap(), block(&device, 8));
    communicator.abort();
    communicator.abort();
    let errors = [
        communicator.check().unwrap_err(),
        communicator.all_reduce(&stream, memory.view(), 4).unwrap_err(),
        communicator.broadcast(&stream, memory.view(), 0).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("this rank has aborted"), "{error}");
    }
    drop(communicator);
    assert_eq!(nccl_calls(), [ABORT]);
}

#[test]
fn another_thread_ends_a_wait_by_aborting() {
    let device = opened();
    let communicator = joined(&device);
    let (stream, memory, is_waiting) = (device.stream(true).unwrap(), block(&device, 8), Barrier::new(2));
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            is_waiting.wait();
            thread::sleep(Duration::from_millis(20));
            communicator.check().unwrap();
            communicator.abort();
            assert_eq!(nccl_calls(), [ABORT]);
        });
        keep_nccl_busy(FOREVER);
        is_waiting.wait();
        let error = communicator.all_reduce(&stream, memory.view(), 8).unwrap_err();
        assert!(error.to_string().contains("this rank has aborted"), "{error}");
    });
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    keep_nccl_busy(0);
}

#[test]
fn an_error_of_cuda_on_a_lost_card_is_the_loss_and_nccl_is_not_called_any_more() {
    let device = opened();
    let (communicator, stream, memory) = (joined(&device), device.stream(true).unwrap(), block(&device, 8));
    inject_result("ncclAllReduce", 1);
    inject_result("cuStreamQuery", 700);
    let error = communicator.all_reduce(&stream, memory.view(), 8).unwrap_err();
    assert!(matches!(error, DeviceError::Lost { card: 0, .. }), "{error}");
    calls();
    drop(communicator);
    assert_eq!(nccl_calls(), [""; 0]);
}

#[test]
fn nvls_must_be_disabled_in_the_environment_of_the_rank() {
    let device = opened();
    for (value, expected) in [(None, "not set"), (Some("2"), "it is 2")] {
        set_variable("NCCL_NVLS_ENABLE", value);
        let errors = [Communicator::new_id(device.machine()).unwrap_err(), join(&device, LONG).unwrap_err()];
        for error in errors {
            let DeviceError::CommunicatorEnvironment { variable, expected: needed, found } = &error else {
                panic!("{error}")
            };
            assert_eq!((*variable, *needed, found.as_deref()), ("NCCL_NVLS_ENABLE", "0", value));
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert_eq!(calls(), [""; 0], "nothing is called");
    }
}

#[test]
fn another_algorithm_is_named_as_the_environment_names_it() {
    let device = opened();
    for (value, expected) in [(Some("Tree"), "NCCL 2.28.9, NCCL_ALGO=Tree"), (Some("ring"), "NCCL 2.28.9, Ring")] {
        set_variable("NCCL_ALGO", value);
        assert_eq!(join(&device, LONG).unwrap().describe(), expected);
    }
}

#[test]
fn a_collective_cannot_be_captured() {
    let device = opened();
    let (communicator, stream, memory) = (joined(&device), device.stream(true).unwrap(), block(&device, 8));
    let capture = stream.begin_capture().unwrap();
    let error = communicator.all_reduce(&stream, memory.view(), 8).unwrap_err();
    assert!(error.to_string().contains("a collective cannot be part of a captured graph"), "{error}");
    drop(capture);
    assert_eq!(nccl_calls(), [""; 0]);
}

#[test]
fn a_context_of_its_own_has_no_communicator() {
    let device = opened_on(fake::driver_with_two_contexts(), LONG);
    let error = join(&device, LONG).unwrap_err();
    assert!(error.to_string().contains("primary context"), "{error}");
}

#[test]
fn nccl_is_listed_among_the_libraries_once_it_is_open() {
    let device = opened();
    let names: Vec<String> = device.machine().libraries().into_iter().map(|found| found.name).collect();
    assert!(names.contains(&"libnccl.so.2".to_owned()), "{names:?}");
}
