//! The driver calls we make, in order, against a fake driver that logs them.

use super::fake::{calls, driver, elapse, inject_result};
use super::work::MAX_ARGS;
use super::*;
use crate::bytes::MIB;
use crate::card::PeerAttributes;
use crate::driver::{Address, CopyPath, Driver, HostSpan, PeerCall, RawArg, Reservation};
use crate::gemm::{Gemm, Operand, RawGemm};
use crate::kernel::{DType, Grid, Kernel, Source};

static SOURCE: Source = Source { file: "fake.cu", text: "" };
static KERNEL: Kernel = Kernel { name: "work", source: &SOURCE, params: &[], host: &|_| {} };

/// A driver with the first `cards` cards open, and an empty log.
fn opened(cards: usize) -> CudaDriver {
    let driver = driver();
    for card in 0..cards {
        driver.open(card).unwrap();
    }
    calls();
    driver
}

/// Calls other than `cuCtxSetCurrent`.
fn work() -> Vec<String> {
    calls().into_iter().filter(|call| !call.starts_with("cuCtxSetCurrent")).collect()
}

#[test]
fn cards_are_numbered_in_bus_order_and_opened_by_their_cuda_handle() {
    let driver = driver();
    assert_eq!(driver.cards()[0].uuid, "GPU-1");
    driver.open(0).unwrap();
    assert_eq!(calls()[..2], ["cuDevicePrimaryCtxRetain 1", "cuCtxSetCurrent 101"]);
    driver.open(0).unwrap();
    assert_eq!(calls(), [""; 0], "a second opening is only counted");
    assert!(matches!(driver.open(2), Err(DeviceError::NoSuchCard { index: 2, found: 2 })));
}

#[test]
fn calls_on_a_thread_of_another_library_leave_its_context_and_its_capture_mode() {
    let driver = opened(2);
    let device_of_others = 777;
    // SAFETY: the fake takes any handle.
    unsafe { (driver.api.cuCtxSetCurrent)(device_of_others) };
    calls();
    let before = driver.enter_thread(true);
    assert_eq!((before.context, before.capture_mode), (device_of_others as u64, 0));
    driver.create_event(0, false).unwrap();
    driver.restore_thread(before);
    let expected = [
        "cuThreadExchangeStreamCaptureMode 2",
        "cuCtxSetCurrent 101",
        "cuEventCreate 3",
        "cuThreadExchangeStreamCaptureMode 0",
        "cuCtxSetCurrent 777",
    ];
    assert_eq!(calls(), expected);
    // The next call of ours does not take the context of others for its own.
    driver.create_event(0, false).unwrap();
    assert_eq!(calls()[0], "cuCtxSetCurrent 101");
}

#[test]
fn a_thread_of_ours_is_restricted_by_its_own_captures_only() {
    let driver = opened(1);
    driver.enter_thread(false);
    assert_eq!(calls(), ["cuThreadExchangeStreamCaptureMode 1"]);
}

#[test]
fn a_stream_that_another_library_captures_is_noticed() {
    let driver = opened(1);
    assert!(!driver.is_capturing(0, 7).unwrap());
    assert!(driver.is_capturing(0, fake::CAPTURED as u64).unwrap());
    // The legacy default stream cannot be asked during a capture.
    inject_result("cuStreamIsCapturing", 906);
    assert!(driver.is_capturing(0, 1).unwrap());
    inject_result("cuStreamIsCapturing", 400);
    assert!(matches!(driver.is_capturing(0, 7), Err(DeviceError::Failed { .. })));
}

#[test]
fn other_libraries_know_cards_by_cudas_number() {
    // Card 0 of nvidia-smi is CUDA's device 1.
    assert_eq!([0, 1, 2].map(|card| driver().ordinal(card)), [Some(1), Some(0), None]);
}

#[test]
fn what_restricts_the_cards_is_reported_with_cudas_order() {
    let mut driver = driver();
    assert_eq!(driver.visibility(), None);
    driver.visible_devices = Some("1,0".to_string());
    let found = driver.visibility().unwrap();
    // Card 0 of nvidia-smi is CUDA's device 1.
    assert_eq!((found.by.as_str(), found.cuda_order), ("CUDA_VISIBLE_DEVICES=1,0", vec![1, 0]));
    assert_eq!((found.undo.as_deref(), found.lists_hidden), (Some("unset CUDA_VISIBLE_DEVICES"), false));
    driver.visible_devices = None;
    driver.cards[1].hidden_by = Some("the CUDA driver".to_string());
    driver.cuda_cards[1].device = None;
    let found = driver.visibility().unwrap();
    assert_eq!((found.by.as_str(), found.undo, found.cuda_order), ("the CUDA driver", None, vec![0]));
}

#[test]
fn a_capped_reservation_is_all_of_a_pool_of_that_size() {
    let driver = opened(1);
    let held = driver.reserve(0, 64 * MIB, true).unwrap();
    assert_eq!((held.base.raw, held.bytes, held.pool), (0x1000, 64 * MIB, 50));
    let expected = [
        "cuMemPoolCreate MemLocation { kind: 1, ordinal: 1 } 67108864",
        "cuMemPoolGetAccess 50",
        "cuMemAllocFromPoolAsync 67108864 50 10",
        "cuStreamQuery 10",
    ];
    assert_eq!(calls(), expected);
    driver.release(held);
    let expected = ["cuStreamQuery 10", "cuMemFreeAsync 0x1000 10", "cuStreamQuery 10", "cuMemPoolDestroy 50"];
    assert_eq!(calls(), expected);
}

#[test]
fn a_refused_reservation_leaves_no_pool() {
    let driver = opened(1);
    inject_result("cuMemAllocFromPoolAsync", api::OUT_OF_MEMORY);
    let error = driver.reserve(0, 64 * MIB, true).unwrap_err();
    let DeviceError::OutOfMemory { card: 0, asked, free, total } = error else { panic!("{error}") };
    assert_eq!((asked, free, total), (64 * MIB, 7 * MIB, 24 << 30));
    assert_eq!(calls().last().unwrap(), "cuMemPoolDestroy 50");
}

#[test]
#[should_panic(expected = "rounded up")]
fn a_cap_that_the_driver_would_round_up_panics() {
    let _ = opened(1).reserve(0, 33 * MIB, true);
}

#[test]
fn the_pool_is_asked_for_one_byte_more() {
    let driver = opened(1);
    let held = driver.reserve(0, 32 * MIB, true).unwrap();
    assert!(!driver.pool_refuses_more(&held).unwrap());
    assert!(calls().contains(&"cuMemFreeAsync 0x1000 10".to_string()), "the byte is freed again");
    inject_result("cuMemAllocFromPoolAsync", api::OUT_OF_MEMORY);
    assert!(driver.pool_refuses_more(&held).unwrap());
    assert!(!driver.pool_refuses_more(&Reservation { pool: 0, ..held }).unwrap());
}

#[test]
fn a_context_is_made_current_once_per_thread_and_again_after_reopening() {
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
fn closing_synchronises_first_and_then_undoes_the_opening() {
    let driver = opened(1);
    driver.cuda_cards[0].modules.get(&driver.api, &SOURCE, || Ok(vec![0; 8]), |_, _| Ok(())).unwrap();
    driver.open(0).unwrap();
    driver.close(0);
    calls();
    driver.create_event(0, false).unwrap();
    assert_eq!(calls(), ["cuEventCreate 3"], "one of two users is left");
    driver.close(0);
    let expected = [
        "cuCtxSetCurrent 101",
        "cuStreamQuery 10",
        "cuStreamDestroy_v2 10",
        "cuEventDestroy_v2 20",
        "cuEventDestroy_v2 20",
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
fn open_cards_are_closed_when_the_driver_is_dropped() {
    drop(opened(2));
    let released: Vec<_> = calls().into_iter().filter(|call| call.starts_with("cuDevicePrimaryCtxRelease")).collect();
    assert_eq!(released, ["cuDevicePrimaryCtxRelease_v2 1", "cuDevicePrimaryCtxRelease_v2 0"]);
}

#[test]
fn what_waits_for_a_lost_card_ends_and_nothing_is_freed() {
    let mut driver = opened(2);
    let held = driver.reserve(1, 32 * MIB, true).unwrap();
    inject_result("cuEventQuery", api::NOT_READY);
    assert!(!driver.synchronize_within(1, 20, Duration::from_millis(1)).unwrap(), "no card is lost");
    // A card that fell off the bus reports unknown errors.
    inject_result("cuEventRecord", 999);
    assert!(matches!(driver.record(0, 10, 20), Err(DeviceError::Lost { card: 0, .. })));
    inject_result("cuEventRecord", 0);
    driver.grace = Duration::ZERO;
    for waited in [driver.synchronize(1, 20), driver.synchronize_within(1, 20, Duration::MAX).map(drop)] {
        let error = waited.unwrap_err();
        assert!(matches!(error, DeviceError::Lost { card: 0, .. }), "{error}");
    }
    // What was reached is known, also now.
    inject_result("cuEventQuery", 0);
    driver.synchronize(1, 20).unwrap();
    work();
    driver.release(held);
    driver.free_host(1, HostSpan { ptr: std::ptr::dangling_mut(), bytes: 1 });
    driver.close(1);
    assert_eq!(work(), [""; 0], "another card may still use it");
}

#[test]
fn with_one_card_open_a_wait_sleeps_in_the_driver() {
    let driver = opened(1);
    driver.synchronize(0, 20).unwrap();
    assert_eq!(work(), ["cuEventSynchronize 20"]);
}

#[test]
fn errors_after_which_a_card_is_unusable_are_losses() {
    for code in [46, 214, 219, 220, 700, 719, 999] {
        assert!(status::is_loss(code), "{code}");
    }
    for code in [0, 1, 2, 201, 205, 217, 400, 600, 704, 900] {
        assert!(!status::is_loss(code), "{code}");
    }
}

#[test]
fn attributes_of_peer_access_are_asked_for_by_cudas_numbers_of_both_cards() {
    let driver = driver();
    calls();
    let expected =
        PeerAttributes { performance_rank: 1, access_supported: true, native_atomics: true, array_access: false };
    assert_eq!(driver.peer_attributes(1, 0).unwrap(), expected);
    assert_eq!(calls(), [1, 2, 3, 4].map(|attribute| format!("cuDeviceGetP2PAttribute {attribute} 0 1")));
    inject_result("cuDeviceGetP2PAttribute", 101);
    assert!(driver.peer_attributes(1, 0).is_err());
}

#[test]
fn peer_access_is_enabled_on_the_pool_and_peer_copies_use_both_contexts() {
    let driver = opened(2);
    let from = driver.reserve(0, 32 * MIB, true).unwrap();
    let to = Address { card: 1, raw: 0x9000 };
    work();
    assert!(driver.can_access_peer(1, 0).unwrap() && !driver.can_access_peer(0, 0).unwrap());
    driver.allow_peer(&from, 1).unwrap();
    let path = |call| CopyPath::Peer { from: from.base, to, bytes: 512, call };
    driver.copy(0, 10, path(PeerCall::BetweenContexts)).unwrap();
    driver.copy(0, 10, path(PeerCall::Unified)).unwrap();
    let expected = [
        "cuDeviceCanAccessPeer 0 1",
        "cuMemPoolSetAccess 50 MemLocation { kind: 1, ordinal: 0 } 3 1",
        "cuMemcpyPeerAsync 0x9000 100 0x1000 101 512 10",
        "cuMemcpyDtoDAsync_v2 0x9000 0x1000 512 10",
    ];
    assert_eq!(work(), expected);

    driver.allow_peer(&from, 0).unwrap();
    assert_eq!(work(), [""; 0], "a card can access its own memory");
    let error = driver.allow_peer(&Reservation { pool: 0, ..from }, 1).unwrap_err();
    assert!(error.is_about_route(), "{error}");
    assert_eq!(work(), [""; 0], "access to all memory of a card is never enabled");
}

#[test]
fn a_pool_neither_inherits_access_nor_leaves_it_behind() {
    let driver = opened(2);
    fake::inherit_access(3);
    let held = driver.reserve(0, 32 * MIB, true).unwrap();
    let closed = "cuMemPoolSetAccess 50 MemLocation { kind: 1, ordinal: 0 } 0 1";
    assert_eq!(work()[1..3], ["cuMemPoolGetAccess 50", closed]);
    fake::inherit_access(0);
    driver.allow_peer(&held, 1).unwrap();
    work();
    driver.release(held);
    let freed: Vec<String> = work().into_iter().filter(|call| !call.starts_with("cuStream")).collect();
    assert_eq!(freed, [closed, "cuMemFreeAsync 0x1000 10", "cuMemPoolDestroy 50"]);
}

#[test]
fn without_memory_pools_nothing_is_capped_and_no_other_card_gets_access() {
    let driver = opened(1);
    inject_result("cuMemPoolCreate", api::NOT_SUPPORTED);
    let error = driver.reserve(0, 32 * MIB, true).unwrap_err();
    assert!(matches!(error, DeviceError::NoPools { card: 0, .. }), "{error}");
    inject_result("cuMemPoolCreate", 0);
}

#[test]
fn a_context_that_another_library_made_current_is_left_for_ours() {
    let driver = opened(1);
    driver.create_event(0, true).unwrap();
    calls();
    fake::switch_context(7);
    driver.create_event(0, true).unwrap();
    assert_eq!(calls(), ["cuCtxSetCurrent 101", "cuEventCreate 1"]);
}

#[test]
fn work_that_never_ends_holds_nothing_up_and_nothing_of_it_is_freed() {
    let mut driver = opened(1);
    driver.teardown_deadline = Duration::from_millis(5);
    let held = driver.reserve(0, 32 * MIB, true).unwrap();
    let stream = driver.create_stream(0, false).unwrap();
    inject_result("cuStreamQuery", api::NOT_READY);
    work();
    driver.destroy_stream(0, stream);
    assert_eq!(work(), ["cuStreamQuery 10"], "a stream with work in flight is kept");
    driver.release(held);
    driver.close(0);
    let freed: Vec<String> = work().into_iter().filter(|call| !call.starts_with("cuStreamQuery")).collect();
    assert_eq!(freed, [""; 0], "the end of the process frees it");
    inject_result("cuStreamQuery", 0);
}

#[test]
fn a_stream_with_work_in_flight_is_destroyed_once_it_is_idle() {
    let driver = opened(1);
    let (held, stream) = (driver.reserve(0, 32 * MIB, true).unwrap(), driver.create_stream(0, false).unwrap());
    inject_result("cuStreamQuery", api::NOT_READY);
    driver.destroy_stream(0, stream);
    inject_result("cuStreamQuery", 0);
    work();
    driver.release(held);
    assert_eq!(work()[..2], ["cuStreamQuery 10", "cuStreamDestroy_v2 10"]);
}

#[test]
fn one_card_is_shown_as_two_with_a_context_each() {
    let driver = fake::driver_with_two_contexts();
    assert_eq!(driver.cards().iter().map(|card| card.uuid.as_str()).collect::<Vec<_>>(), ["GPU-1-0", "GPU-1-1"]);
    calls();
    driver.open(0).unwrap();
    driver.open(1).unwrap();
    let created: Vec<String> = calls().into_iter().filter(|call| call.starts_with("cuCtxCreate")).collect();
    assert_eq!(created, ["cuCtxCreate_v2 0 1"; 2]);
    let contexts = [0, 1].map(|card| driver.opened(card, "a test").unwrap().context);
    assert_ne!(contexts[0], contexts[1]);

    // Access is granted on the card's own pool, because both are one card; it stays when the pool is closed.
    assert!(driver.can_access_peer(0, 1).unwrap() && !driver.can_access_peer(1, 1).unwrap());
    let held = driver.reserve(1, 32 * MIB, true).unwrap();
    work();
    driver.allow_peer(&held, 0).unwrap();
    assert_eq!(work(), ["cuMemPoolSetAccess 50 MemLocation { kind: 1, ordinal: 1 } 3 1"]);
    // The driver names the card; which of its two contexts owns the memory is in our books.
    assert_eq!(driver.reservations.card_of(held.base.plus(5)), Some(1));
    assert_eq!(driver.reservations.card_of(held.base.plus(32 * MIB)), None);
    assert_eq!(driver.process_bytes(0).unwrap(), None, "the process is counted, not its contexts");

    driver
        .copy(0, 10, CopyPath::Peer { from: held.base, to: held.base, bytes: 8, call: PeerCall::BetweenContexts })
        .unwrap();
    let both = format!("cuMemcpyPeerAsync 0x1000 {} 0x1000 {} 8 10", contexts[1], contexts[1]);
    assert_eq!(work(), [both]);
    drop(driver);
    assert_eq!(calls().into_iter().filter(|call| call.starts_with("cuCtxDestroy")).count(), 2);
}

#[test]
fn driver_codes_become_typed_errors() {
    let driver = opened(1);
    let check = |code, expected: &str| {
        inject_result("cuEventQuery", code);
        let found = match driver.reached(0, 20) {
            Ok(reached) => format!("{reached}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
    };
    check(0, "true");
    check(api::NOT_READY, "false");
    check(1, "querying an event failed on GPU 0: CUDA_ERROR_INVALID_VALUE (1)");
    for lost in [46, 214, 219, 700, 719, 999] {
        check(
            lost,
            &format!(
                "GPU 0 was lost: CUDA_ERROR_OTHER ({lost}), reported while querying an event; \
                 this process cannot use it any more: start again, and resume from the last checkpoint if there is one"
            ),
        );
    }
    inject_result("cuMemHostAlloc", api::OUT_OF_MEMORY);
    assert!(matches!(driver.alloc_host(0, 4096), Err(DeviceError::OutOfPinned { asked: 4096 })));
}

#[test]
fn a_card_that_another_process_uses_exclusively_is_not_lost() {
    let driver = driver();
    inject_result("cuDevicePrimaryCtxRetain", api::DEVICE_UNAVAILABLE);
    let error = driver.open(0).unwrap_err();
    assert!(matches!(error, DeviceError::Failed { card: 0, during: "opening the card", .. }), "{error}");
    assert!(error.to_string().contains("exclusively"), "{error}");
    let error = driver.read(0).unwrap_err();
    assert!(matches!(error, DeviceError::Failed { during: "reading the card", .. }), "{error}");
    inject_result("cuDevicePrimaryCtxRetain", 0);
    driver.read(0).expect("the other process has ended");
    driver.open(0).unwrap();
    driver.synchronize(0, 20).unwrap();
}

#[test]
fn an_opening_that_fails_half_way_releases_the_context() {
    let driver = driver();
    inject_result("cuStreamCreateWithPriority", 1);
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
fn arguments_are_laid_out_as_the_kernel_reads_them() {
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
fn large_shared_memory_is_set_once_per_size() {
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
    let modules = &driver.cuda_cards[0].modules;
    for _ in 0..2 {
        modules.get(&driver.api, &SOURCE, || Ok(vec![0; 8]), |_, _| Ok(())).unwrap();
    }
    assert_eq!(calls(), ["cuModuleLoadData"]);
    assert_eq!(modules::function(&driver.api, 30, "work"), Ok(40));
    inject_result("cuModuleGetFunction", 500);
    assert_eq!(modules::function(&driver.api, 30, "play"), Err(500));
}

#[test]
fn streams_do_not_synchronise_with_the_default_stream_and_have_priorities() {
    let driver = opened(1);
    driver.create_stream(0, true).unwrap();
    driver.create_stream(0, false).unwrap();
    assert_eq!(calls(), ["cuStreamCreateWithPriority 1 -5", "cuStreamCreateWithPriority 1 0"]);
}

#[test]
fn the_card_of_an_address_comes_from_the_driver() {
    let driver = opened(1);
    assert_eq!(driver.card_of(Address { card: 0, raw: 0x1000 }).unwrap(), 1, "device 0 is card 1");
}

#[test]
fn without_nvml_a_reading_leaves_the_card_as_it_was() {
    let driver = driver();
    assert_eq!(driver.read(0).unwrap().free_bytes, 7 * MIB);
    assert_eq!(calls().last().unwrap(), "cuDevicePrimaryCtxRelease_v2 1");
    driver.open(0).unwrap();
    calls();
    assert_eq!(driver.read(0).unwrap().total_bytes, 24 << 30);
    assert_eq!(calls(), ["cuMemGetInfo_v2"]);
    assert_eq!(driver.process_bytes(0).unwrap(), None);
}

/// A GEMM of dense matrices at aligned addresses, with a workspace.
fn gemm(shape: Gemm, bias: Option<u64>) -> RawGemm {
    let at = |raw| Address { card: 0, raw };
    RawGemm {
        shape,
        a: (at(0xa000), shape.bytes_of_a()),
        b: (at(0xb000), shape.bytes_of_b()),
        c: (at(0xc000), shape.bytes_of_c()),
        bias: bias.map(|raw| (at(raw), 64)),
        workspace: Some((at(0xf000), 1 << 20)),
    }
}

#[test]
fn a_gemm_swaps_a_and_b_and_is_planned_once() {
    let driver = opened(1);
    let shape = Gemm { alpha: 0.5, ..Gemm::dense(DType::F32, [2, 3, 5]).with_b_transposed() };
    driver.gemm(0, 10, &gemm(shape, None)).unwrap();
    let first = calls();
    let expected = [
        "cublasLtCreate",
        "cublasLtMatmulDescCreate 68 0",
        "cublasLtMatmulDescSetAttribute 3=0x1",
        "cublasLtMatmulDescSetAttribute 4=0x0",
        "cublasLtMatrixLayoutCreate 0 5x3 every 5",
        "cublasLtMatrixLayoutCreate 0 5x2 every 5",
        "cublasLtMatrixLayoutCreate 0 3x2 every 3",
        "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSetAttribute 1=1048576",
        "cublasLtMatmulPreferenceSetAttribute 3=2",
        "cublasLtMatmulPreferenceSetAttribute 5=256",
        "cublasLtMatmulPreferenceSetAttribute 6=256",
        "cublasLtMatmulPreferenceSetAttribute 7=256",
        "cublasLtMatmulPreferenceSetAttribute 8=256",
        "cublasLtMatmulAlgoGetHeuristic 1",
        "cublasLtMatmulPreferenceDestroy",
        "cublasLtMatmul 70 0.5·0xb000·0xa000 + 0·0xc000 to 0xc000 by 7 with 0xf000+4096 on 10",
    ];
    assert_eq!(first, expected);
    let again = Gemm { alpha: 1.0, accumulate: true, ..shape };
    driver.gemm(0, 10, &gemm(again, None)).unwrap();
    let expected = ["cublasLtMatmul 70 1·0xb000·0xa000 + 1·0xc000 to 0xc000 by 7 with 0xf000+4096 on 10"];
    assert_eq!(calls(), expected, "the algorithm depends on the shape, not on alpha or accumulate");

    driver.close(0);
    assert!(calls().contains(&"cublasLtDestroy 70".to_owned()));
    driver.open(0).unwrap();
    calls();
    driver.gemm(0, 10, &gemm(shape, None)).unwrap();
    assert_eq!(calls().len(), 2, "a new handle, and the same algorithm");
}

#[test]
fn batch_strides_and_alignments_are_passed_on() {
    let driver = opened(1);
    let (a, c) = (Operand::rows(8).every(40), Operand::rows(4).every(20));
    let shape = Gemm { batch: 6, a, c, out: DType::F32, ..Gemm::dense(DType::BF16, [5, 4, 8]) };
    let mut raw = gemm(shape, None);
    raw.b.0.raw += 6;
    driver.gemm(0, 10, &raw).unwrap();
    let passed: Vec<String> = calls().into_iter().filter(|call| call.contains('=') || call.contains("every")).collect();
    let expected = [
        "cublasLtMatmulDescSetAttribute 3=0x0",
        "cublasLtMatmulDescSetAttribute 4=0x0",
        "cublasLtMatrixLayoutCreate 14 4x8 every 4",
        "cublasLtMatrixLayoutSetAttribute 5=6",
        "cublasLtMatrixLayoutSetAttribute 6=0",
        "cublasLtMatrixLayoutCreate 14 8x5 every 8",
        "cublasLtMatrixLayoutSetAttribute 5=6",
        "cublasLtMatrixLayoutSetAttribute 6=40",
        "cublasLtMatrixLayoutCreate 0 4x5 every 4",
        "cublasLtMatrixLayoutSetAttribute 5=6",
        "cublasLtMatrixLayoutSetAttribute 6=20",
        "cublasLtMatmulPreferenceSetAttribute 1=1048576",
        "cublasLtMatmulPreferenceSetAttribute 3=2",
        "cublasLtMatmulPreferenceSetAttribute 5=2",
        "cublasLtMatmulPreferenceSetAttribute 6=16",
        "cublasLtMatmulPreferenceSetAttribute 7=16",
        "cublasLtMatmulPreferenceSetAttribute 8=16",
    ];
    assert_eq!(passed, expected);
}

/// Calls that queue work, and the bias pointers that were set.
fn queued() -> Vec<String> {
    let names = ["cublasLtMatmul ", "cublasLtMatmulDescSetAttribute 8", "cuLaunchKernel"];
    calls().into_iter().filter(|call| names.iter().any(|name| call.starts_with(name))).collect()
}

#[test]
fn a_bias_is_added_by_the_epilogue_or_by_our_kernel_before() {
    let driver = opened(1);
    let source = &crate::kernels::gemm_init::SOURCE;
    driver.cuda_cards[0].modules.get(&driver.api, source, || Ok(vec![0; 8]), |_, _| Ok(())).unwrap();
    let shape = Gemm { accumulate: true, ..Gemm::dense(DType::F32, [2, 3, 5]) };
    driver.gemm(0, 10, &gemm(shape, Some(0xd000))).unwrap();
    driver.gemm(0, 10, &gemm(shape, Some(0xe000))).unwrap();
    let expected = [
        "cublasLtMatmulDescSetAttribute 8=0xd000",
        "cublasLtMatmulDescSetAttribute 8=0xd000",
        "cublasLtMatmul 70 1·0xb000·0xa000 + 1·0xc000 to 0xc000 by 7 with 0xf000+4096 on 10",
        "cublasLtMatmulDescSetAttribute 8=0xe000",
        "cublasLtMatmul 70 1·0xb000·0xa000 + 1·0xc000 to 0xc000 by 7 with 0xf000+4096 on 10",
    ];
    assert_eq!(queued(), expected);

    fake::refuse_bias();
    let wider = Gemm { accumulate: false, ..Gemm::dense(DType::F32, [2, 4, 5]) };
    driver.gemm(0, 10, &gemm(wider, Some(0xd000))).unwrap();
    let expected = [
        "cublasLtMatmulDescSetAttribute 8=0xd000",
        "cuLaunchKernel 40 1,1,1 256 0 10 [c000, d000, 2, 4, 1]",
        "cublasLtMatmul 70 1·0xb000·0xa000 + 1·0xc000 to 0xc000 by 7 with 0xf000+4096 on 10",
    ];
    assert_eq!(queued(), expected);

    let empty = Gemm { k: 0, ..wider };
    driver.gemm(0, 10, &gemm(empty, None)).unwrap();
    assert_eq!(queued(), ["cuLaunchKernel 40 1,1,1 256 0 10 [c000, c000, 2, 4, 1]"]);
    driver.gemm(0, 10, &gemm(Gemm { accumulate: true, ..empty }, None)).unwrap();
    assert_eq!(queued(), [""; 0], "C stays");
}

#[test]
fn a_gemm_that_the_library_refuses_is_named() {
    let driver = opened(1);
    let shape = Gemm::dense(DType::F32, [2, 3, 5]);
    let check = |shape: Gemm, function, code, parts: [&str; 2]| {
        inject_result(function, code);
        let error = driver.gemm(0, 10, &gemm(shape, None)).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        inject_result(function, 0);
    };
    check(Gemm { dtype: DType::F64, out: DType::F64, ..shape }, "cuInit", 0, ["[2,5]·[5,3]", "F64"]);
    check(shape, "cublasLtCreate", 3, ["libcublasLt.so.13", "CUBLAS_STATUS_FAKE (3)"]);
    check(shape, "cublasLtMatmulAlgoGetHeuristic", 15, ["[2,5]·[5,3]", "no algorithm"]);
    check(shape, "cublasLtMatmulAlgoGetHeuristic", 7, ["[2,5]·[5,3]", "CUBLAS_STATUS_FAKE (7)"]);
    check(shape, "cublasLtMatmul", 13, ["[2,5]·[5,3]", "CUBLAS_STATUS_FAKE (13)"]);
    driver.gemm(0, 10, &gemm(shape, None)).unwrap();
}

#[test]
fn a_captured_graph_is_uploaded_before_its_first_launch() {
    let driver = opened(1);
    driver.begin_capture(0, 10).unwrap();
    driver.fill(0, 10, Address { card: 0, raw: 0x1000 }, 64, 0).unwrap();
    let graph = driver.end_capture(0, 10).unwrap();
    driver.replay(0, 10, graph).unwrap();
    driver.replay(0, 10, graph).unwrap();
    driver.destroy_graph(0, graph);
    let expected = [
        "cuStreamBeginCapture_v2 10 1",
        "cuMemsetD8Async 0x1000 0 64 10",
        "cuStreamEndCapture 10",
        "cuGraphInstantiateWithFlags 60 0",
        "cuGraphDestroy 60",
        "cuGraphUpload 61 10",
        "cuGraphLaunch 61 10",
        "cuGraphLaunch 61 10",
        "cuGraphExecDestroy 61",
    ];
    assert_eq!(calls(), expected);
}

#[test]
fn a_failed_or_discarded_capture_leaves_no_graph() {
    let driver = opened(1);
    let check = |function, expected: &[&str]| {
        inject_result(function, 1);
        driver.begin_capture(0, 10).unwrap();
        assert!(driver.end_capture(0, 10).is_err());
        inject_result(function, 0);
        let left: Vec<String> = calls().into_iter().filter(|call| call.contains("Destroy")).collect();
        assert_eq!(left, expected, "{function}");
    };
    check("cuStreamEndCapture", &[]);
    check("cuGraphInstantiateWithFlags", &["cuGraphDestroy 60"]);
    check("cuGraphUpload", &["cuGraphDestroy 60", "cuGraphExecDestroy 61"]);
    driver.begin_capture(0, 10).unwrap();
    driver.abandon_capture(0, 10);
    assert_eq!(calls(), ["cuStreamBeginCapture_v2 10 1", "cuStreamEndCapture 10", "cuGraphDestroy 60"]);
}

#[test]
fn equal_sources_share_a_module() {
    static TWICE: Source = Source { file: "fake.cu", text: "" };
    static OTHER: Source = Source { file: "fake.cu", text: "other" };
    let driver = opened(1);
    let modules = &driver.cuda_cards[0].modules;
    assert_eq!(modules.missing(&[&SOURCE, &TWICE, &OTHER]).len(), 2);
    modules.get(&driver.api, &SOURCE, || Ok(vec![0; 8]), |_, _| Ok(())).unwrap();
    assert_eq!(modules.missing(&[&SOURCE, &TWICE]).len(), 0);
    modules.get(&driver.api, &TWICE, || panic!("already loaded"), |_, _| Ok(())).unwrap();
    assert_eq!(calls(), ["cuModuleLoadData"]);
}

/// Functions that release and allocate, which all fail on a lost card.
const AFTER_A_LOSS: [&str; 21] = [
    "cuCtxSetCurrent",
    "cuStreamQuery",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemPoolDestroy",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemsetD8Async",
    "cuStreamEndCapture",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuModuleUnload",
    "cuDevicePrimaryCtxRelease_v2",
    "cublasLtMatmul",
    "cublasLtDestroy",
];

#[test]
fn after_a_trap_every_call_returns_lost_and_releasing_ignores_errors() {
    let driver = opened(1);
    let source = &crate::kernels::trap::SOURCE;
    driver.cuda_cards[0].modules.get(&driver.api, source, || Ok(vec![0; 8]), |_, _| Ok(())).unwrap();
    let (pooled, plain) = (driver.reserve(0, 32 * MIB, true).unwrap(), driver.reserve(0, 4096, false).unwrap());
    let pinned = driver.alloc_host(0, 64).unwrap();
    driver.begin_capture(0, 10).unwrap();
    let graph = driver.end_capture(0, 10).unwrap();
    let multiply = || driver.gemm(0, 10, &gemm(Gemm::dense(DType::F32, [2, 3, 5]), None));
    multiply().unwrap();
    driver.begin_capture(0, 11).unwrap();
    calls();
    driver.trap(0, 10).unwrap();
    assert_eq!(calls(), ["cuModuleGetFunction 30 injected_trap", "cuLaunchKernel 40 1,1,1 1 0 10 [0, 0, 0, 0, 0]"]);

    AFTER_A_LOSS.iter().for_each(|function| inject_result(function, 719));
    let check = |result: Result<(), DeviceError>, call: &str| {
        let lost = matches!(&result, Err(DeviceError::Lost { card: 0, during, what }) if *during == call && what.contains("719"));
        assert!(lost, "{call}: {result:?}");
    };
    check(driver.synchronize(0, 20), "waiting for the device");
    check(driver.reached(0, 20).map(drop), "querying an event");
    check(driver.record(0, 10, 20), "recording an event");
    check(driver.fill(0, 10, plain.base, 64, 0), "filling memory");
    check(driver.replay(0, 10, graph), "launching a graph");
    check(driver.reserve(0, 4096, false).map(drop), "reserving memory");
    check(driver.alloc_host(0, 64).map(drop), "allocating pinned memory");
    check(multiply(), "queueing a GEMM");

    driver.abandon_capture(0, 11);
    driver.destroy_graph(0, graph);
    driver.free_host(0, pinned);
    driver.destroy_event(0, 20);
    driver.destroy_stream(0, 10);
    driver.release(pooled);
    driver.release(plain);
    calls();
    driver.close(0);
    let last = calls();
    assert_eq!(last.last().unwrap(), "cuDevicePrimaryCtxRelease_v2 1", "releasing the context frees its memory");
    AFTER_A_LOSS.iter().for_each(|function| inject_result(function, 0));
}

#[test]
fn event_times_are_on_the_hosts_clock_and_a_newer_reference_event_takes_over() {
    let driver = driver();
    driver.open(0).unwrap();
    let opened_ns = driver.now_ns();
    let events: Vec<String> = calls().into_iter().filter(|call| call.starts_with("cuEvent")).collect();
    let once = ["cuEventRecord 20 10", "cuEventSynchronize 20"];
    assert_eq!(events[2..], [once, once].concat(), "on the card's service stream, and waited for");
    let at = |ms: f32| {
        elapse(ms);
        driver.reached_at_ns(0, 77).unwrap()
    };
    let (early, later) = (at(1.5), at(1.75));
    assert_eq!(later - early, 250_000);
    assert!(early < opened_ns + 1_500_000, "measured from an event that was recorded while the card was opened");
    calls();
    inject_result("cuEventQuery", api::NOT_READY);
    let late = at(4001.0);
    let recorded_ns = driver.now_ns();
    let made = calls();
    assert_eq!(made[1], "cuEventRecord 20 10", "the reference event is old");
    assert!(made[2..].iter().all(|call| call == "cuEventQuery 20") && made.len() < 20, "not waited for: {made:?}");
    assert_eq!(at(4001.5) - late, 500_000, "the new reference event has not been reached");
    inject_result("cuEventQuery", 0);
    // The fake returns the same time between any two events: by the card's clock the new reference event is as late as the
    // event that is read here, which is far in the host's future. It was seen now, so it is anchored now.
    assert_eq!(at(4001.0), late);
    let now_ns = driver.now_ns();
    let anchored = at(0.0);
    assert!((recorded_ns..=now_ns).contains(&anchored), "{anchored} {recorded_ns} {now_ns}");
    assert_eq!(at(-0.001), anchored - 1000, "events before the reference event have times too");
    driver.close(0);
    let after = calls();
    assert_eq!(after.iter().filter(|call| call.starts_with("cuEventDestroy_v2")).count(), 2);
    elapse(1.5);
}
