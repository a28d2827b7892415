//! The calls we make, in their order, against a driver that writes them down.

use super::fake::{answer, calls, driver};
use super::work::MAX_ARGS;
use super::*;
use crate::bytes::MIB;
use crate::driver::{Address, CopyPath, Driver, RawArg, Reservation};
use crate::kernel::{Grid, Kernel, Source};

static SOURCE: Source = Source { file: "fake.cu", text: "" };
static KERNEL: Kernel = Kernel { name: "work", source: &SOURCE, params: &[], twin: &|_| {} };

/// A driver with the first `cards` open, and nothing noted yet.
fn opened(cards: usize) -> CudaDriver {
    let driver = driver();
    for card in 0..cards {
        driver.open(card).unwrap();
    }
    calls();
    driver
}

/// Calls other than the choice of a context.
fn work() -> Vec<String> {
    calls().into_iter().filter(|call| !call.starts_with("cuCtxSetCurrent")).collect()
}

#[test]
fn cards_are_numbered_along_the_bus_and_opened_by_their_own_handle() {
    let driver = driver();
    assert_eq!(driver.cards()[0].uuid, "GPU-1");
    driver.open(0).unwrap();
    assert_eq!(calls()[..2], ["cuDevicePrimaryCtxRetain 1", "cuCtxSetCurrent 101"]);
    driver.open(0).unwrap();
    assert_eq!(calls(), [""; 0], "a second opening is only counted");
    assert!(matches!(driver.open(2), Err(DeviceError::NoSuchCard { index: 2, found: 2 })));
}

#[test]
fn a_capped_reservation_is_one_piece_of_a_pool_of_that_size() {
    let driver = opened(1);
    let held = driver.reserve(0, 64 * MIB, true).unwrap();
    assert_eq!((held.base.raw, held.bytes, held.pool), (0x1000, 64 * MIB, 50));
    let expected = [
        "cuMemPoolCreate Location { kind: 1, ordinal: 1 } 67108864",
        "cuMemAllocFromPoolAsync 67108864 50 10",
        "cuStreamSynchronize 10",
    ];
    assert_eq!(calls(), expected);
    driver.release(held);
    let expected = ["cuCtxSynchronize", "cuMemFreeAsync 0x1000 10", "cuStreamSynchronize 10", "cuMemPoolDestroy 50"];
    assert_eq!(calls(), expected);
}

#[test]
fn a_reservation_the_card_refuses_leaves_no_pool() {
    let driver = opened(1);
    answer("cuMemAllocFromPoolAsync", api::OUT_OF_MEMORY);
    let error = driver.reserve(0, 64 * MIB, true).unwrap_err();
    let DeviceError::OutOfMemory { card: 0, asked, free, total } = error else { panic!("{error}") };
    assert_eq!((asked, free, total), (64 * MIB, 7 * MIB, 24 << 30));
    assert_eq!(calls().last().unwrap(), "cuMemPoolDestroy 50");
}

#[test]
#[should_panic(expected = "rounded up")]
fn a_cap_that_the_driver_would_round_up_is_our_mistake() {
    let _ = opened(1).reserve(0, 33 * MIB, true);
}

#[test]
fn the_pool_itself_is_asked_for_one_byte_more() {
    let driver = opened(1);
    let held = driver.reserve(0, 32 * MIB, true).unwrap();
    assert!(!driver.pool_refuses_more(&held).unwrap());
    assert!(calls().contains(&"cuMemFreeAsync 0x1000 10".to_string()), "what was given is given back");
    answer("cuMemAllocFromPoolAsync", api::OUT_OF_MEMORY);
    assert!(driver.pool_refuses_more(&held).unwrap());
    assert!(!driver.pool_refuses_more(&Reservation { pool: 0, ..held }).unwrap());
}

#[test]
fn a_context_is_chosen_once_per_thread_and_anew_after_reopening() {
    let driver = opened(2);
    driver.create_event(1, false).unwrap();
    driver.create_event(1, false).unwrap();
    assert_eq!(calls(), ["cuEventCreate 3", "cuEventCreate 3"], "card 1 was entered last, when it was opened");
    driver.create_event(0, true).unwrap();
    assert_eq!(calls(), ["cuCtxSetCurrent 101", "cuEventCreate 1"]);
    driver.close(0);
    driver.open(0).unwrap();
    driver.create_event(1, true).unwrap();
    calls();
    driver.create_event(0, true).unwrap();
    assert_eq!(calls(), ["cuCtxSetCurrent 101", "cuEventCreate 1"]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            driver.create_event(0, true).unwrap();
            assert_eq!(calls(), ["cuCtxSetCurrent 101", "cuEventCreate 1"]);
        });
    });
}

#[test]
fn closing_waits_first_and_then_undoes_the_opening() {
    let driver = opened(1);
    driver.seats[0].modules.get(&driver.api, &SOURCE, || Ok(vec![0; 8]), |_, _| Ok(())).unwrap();
    driver.open(0).unwrap();
    driver.close(0);
    calls();
    driver.create_event(0, false).unwrap();
    assert_eq!(calls(), ["cuEventCreate 3"], "one of two users is left");
    driver.close(0);
    let expected = [
        "cuCtxSetCurrent 101",
        "cuCtxSynchronize",
        "cuStreamDestroy_v2 10",
        "cuModuleUnload 30",
        "cuCtxSetCurrent 0",
        "cuDevicePrimaryCtxRelease_v2 1",
    ];
    assert_eq!(calls(), expected);
    let error = driver.create_event(0, false).unwrap_err();
    assert!(error.to_string().contains("not open"), "{error}");
    driver.close(0);
    assert_eq!(calls(), [""; 0]);
}

#[test]
fn a_forgotten_card_is_closed_with_the_driver() {
    drop(opened(2));
    let released: Vec<_> = calls().into_iter().filter(|call| call.starts_with("cuDevicePrimaryCtxRelease")).collect();
    assert_eq!(released, ["cuDevicePrimaryCtxRelease_v2 1", "cuDevicePrimaryCtxRelease_v2 0"]);
}

#[test]
fn the_road_between_two_cards_is_opened_on_the_pool_and_used_with_both_contexts() {
    let driver = opened(2);
    let from = driver.reserve(0, 32 * MIB, true).unwrap();
    let to = Address { card: 1, raw: 0x9000 };
    work();
    assert!(driver.can_access_peer(1, 0).unwrap() && !driver.can_access_peer(0, 0).unwrap());
    driver.allow_peer(&from, 1).unwrap();
    driver.copy(0, 10, CopyPath::Peer { from: from.base, to, bytes: 512 }).unwrap();
    let expected = [
        "cuDeviceCanAccessPeer 0 1",
        "cuDeviceCanAccessPeer 1 1",
        "cuMemPoolSetAccess 50 Location { kind: 1, ordinal: 0 } 1",
        "cuMemcpyPeerAsync 0x9000 100 0x1000 101 512 10",
    ];
    assert_eq!(work(), expected);

    driver.allow_peer(&from, 0).unwrap();
    assert_eq!(work(), [""; 0], "a card reaches its own memory");
    let uncapped = Reservation { pool: 0, ..from };
    driver.allow_peer(&uncapped, 1).unwrap();
    assert_eq!(calls().last().unwrap(), "cuCtxEnablePeerAccess 101");
    answer("cuCtxEnablePeerAccess", api::PEER_ACCESS_ALREADY_ENABLED);
    driver.allow_peer(&uncapped, 1).unwrap();
}

#[test]
fn the_drivers_answers_become_different_things_to_do() {
    let driver = opened(1);
    let check = |code, expected: &str| {
        answer("cuEventQuery", code);
        let found = match driver.reached(0, 20) {
            Ok(reached) => format!("{reached}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
    };
    check(0, "true");
    check(api::NOT_READY, "false");
    check(1, "asking for an event failed on GPU 0: CUDA_ERROR_INVALID_VALUE (1)");
    for lost in [214, 700, 719, 46] {
        check(lost, "GPU 0 was lost during asking for an event");
    }
    answer("cuMemHostAlloc", api::OUT_OF_MEMORY);
    assert!(matches!(driver.alloc_host(0, 4096), Err(DeviceError::OutOfPinned { asked: 4096 })));
}

#[test]
fn a_card_that_another_process_holds_is_not_lost() {
    let driver = driver();
    answer("cuDevicePrimaryCtxRetain", api::DEVICE_UNAVAILABLE);
    let error = driver.open(0).unwrap_err().to_string();
    assert!(error.contains("exclusively"), "{error}");
}

#[test]
fn an_opening_that_fails_half_way_gives_the_context_back() {
    let driver = driver();
    answer("cuStreamCreateWithPriority", 1);
    assert!(driver.open(0).is_err());
    assert_eq!(
        calls()[3..],
        [
            "cuStreamCreateWithPriority 1 0",
            "cuGetErrorName",
            "cuGetErrorString",
            "cuCtxSetCurrent 0",
            "cuDevicePrimaryCtxRelease_v2 1"
        ]
    );
}

#[test]
fn arguments_reach_the_kernel_as_its_parameters_read_them() {
    let driver = opened(1);
    let args = [
        RawArg::Read { at: Address { card: 0, raw: 0x1122_3344_5566_7788 }, bytes: 4 },
        RawArg::Write { at: Address { card: 0, raw: 0x1000 }, bytes: 4 },
        RawArg::U32(7),
        RawArg::U64(1 << 40),
        RawArg::F32(1.0),
    ];
    let grid = Grid { blocks: [3, 2, 1], threads: 128, shared_bytes: 16 };
    driver.launch(0, 10, (&KERNEL, 40), grid, &args).unwrap();
    assert_eq!(calls(), ["cuLaunchKernel 40 3,2,1 128 16 10 [1122334455667788, 1000, 7, 10000000000, 3f800000]"]);

    let many = vec![RawArg::U32(0); MAX_ARGS + 1];
    assert!(matches!(driver.launch(0, 10, (&KERNEL, 40), grid, &many), Err(DeviceError::Arguments { .. })));
}

#[test]
fn large_shared_memory_is_asked_for_once_per_size() {
    let driver = opened(1);
    let args = [RawArg::U32(0); 5];
    let asked = |shared_bytes| {
        let grid = Grid { blocks: [1, 1, 1], threads: 32, shared_bytes };
        driver.launch(0, 10, (&KERNEL, 40), grid, &args).unwrap();
        calls().into_iter().filter(|call| call.starts_with("cuFuncSetAttribute")).collect::<Vec<_>>()
    };
    assert_eq!(asked(48 << 10), [""; 0]);
    assert_eq!(asked(100 << 10), ["cuFuncSetAttribute 40 8 102400"]);
    assert_eq!(asked(100 << 10), [""; 0]);
    assert_eq!(asked(64 << 10), [""; 0]);
}

#[test]
fn a_source_is_loaded_once_per_card() {
    let driver = opened(1);
    let modules = &driver.seats[0].modules;
    for _ in 0..2 {
        modules.get(&driver.api, &SOURCE, || Ok(vec![0; 8]), |_, _| Ok(())).unwrap();
    }
    assert_eq!(calls(), ["cuModuleLoadData"]);
    assert_eq!(modules::function(&driver.api, 30, "work"), Ok(40));
    answer("cuModuleGetFunction", 500);
    assert_eq!(modules::function(&driver.api, 30, "play"), Err(500));
}

#[test]
fn streams_do_not_wait_for_the_default_one_and_urgent_ones_go_first() {
    let driver = opened(1);
    driver.create_stream(0, true).unwrap();
    driver.create_stream(0, false).unwrap();
    assert_eq!(calls(), ["cuStreamCreateWithPriority 1 -5", "cuStreamCreateWithPriority 1 0"]);
}

#[test]
fn memory_is_traced_to_the_card_it_lies_in() {
    let driver = opened(1);
    assert_eq!(driver.home_of(Address { card: 0, raw: 0x1000 }).unwrap(), 1, "device 0 is card 1");
}

#[test]
fn without_the_management_library_a_reading_leaves_the_card_as_it_was() {
    let driver = driver();
    assert_eq!(driver.read(0).unwrap().free_bytes, 7 * MIB);
    assert_eq!(calls().last().unwrap(), "cuDevicePrimaryCtxRelease_v2 1");
    driver.open(0).unwrap();
    calls();
    assert_eq!(driver.read(0).unwrap().total_bytes, 24 << 30);
    assert_eq!(calls(), ["cuMemGetInfo_v2"]);
    assert_eq!(driver.process_bytes(0).unwrap(), None);
}
