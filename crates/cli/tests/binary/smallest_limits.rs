//! The plan's sums are exact: at the smallest accepted limits everything runs, and one step below is refused.

use crate::command::{SMALL, tandem, tandem_json};
use crate::speech::demo;

/// Memory pools are capped in steps of this many MB, and the driver's share is planned in such steps.
const STEP_MB: u64 = 32;

/// The smallest accepted limit up to `max_mb`, in steps of [`STEP_MB`].
fn smallest(accepts: impl Fn(u64) -> bool, max_mb: u64) -> u64 {
    let (mut low, mut high) = (0, max_mb / STEP_MB);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        *if accepts(middle * STEP_MB) { &mut high } else { &mut low } = middle;
    }
    high * STEP_MB
}

/// Finds the smallest limits of both roles and validates with them.
#[track_caller]
fn check(devices: &str, work: &str) {
    let speech = demo();
    let line = |data: u64, model: u64| {
        let limits = format!("--enable-memory-isolation --data-gpu-memory {data} --model-gpu-memory {model}");
        format!("{devices} {limits} {work} --train-data {}", speech.display())
    };
    let accepts = |data, model| tandem(&format!("plan {}", line(data, model))).code == 0;
    let data = smallest(|mb| accepts(mb, 8192), 4096);
    let model = smallest(|mb| accepts(data, mb), 8192);
    assert!(accepts(data, model), "{}", line(data, model));
    assert!(!accepts(data - STEP_MB, model) && !accepts(data, model - STEP_MB), "{}", line(data, model));

    let (ran, report) = tandem_json(&format!("validate {}", line(data, model)));
    assert_eq!(ran.code, 0, "{}\n{}", line(data, model), ran.err);
    let cards = report["cards"].as_array().unwrap();
    let peaks: Vec<u64> = cards.iter().map(|card| card["peak_bytes"].as_u64().unwrap() >> 20).collect();
    match peaks[..] {
        [both] => assert!(0 < both && both <= data + model, "{both} MB"),
        [on_data, on_model] => assert!(0 < on_data && on_data <= data && on_model <= model, "{peaks:?} MB"),
        _ => panic!("{peaks:?}"),
    }
}

#[test]
fn two_gpus_through_the_host() {
    check("--sim 2x24GiB,pcie4 --data-gpu 0 --model-gpu 1", SMALL);
}

#[test]
fn two_gpus_that_reach_each_other() {
    check("--sim 2x24GiB,nvlink --data-gpu 1 --model-gpu 0", SMALL);
}

#[test]
fn one_gpu_in_two_partitions() {
    for route in ["handover", "peer", "bounce"] {
        check(&format!("--sim 1x24GiB --share-gpu --transfer {route}"), SMALL);
    }
}

#[test]
fn the_preset_as_it_is() {
    check("--sim 1x24GiB --share-gpu", "--model-size nano --batch-size 16");
}

#[test]
fn odd_shapes() {
    let work = "--model-size nano --batch-size 3 --max-mel-frames 205 --max-text-length 43 --buffer-size 3 \
                --no-mixed-precision --optimization-level basic";
    check("--sim 2x24GiB --data-gpu 0 --model-gpu 1", work);
    check("--sim 1x24GiB --share-gpu", work);
}
