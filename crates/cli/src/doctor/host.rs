//! The host: processor, memory, limits, disks, terminal.

use std::fs;
use std::path::Path;

use tandem_checkpoint::free_bytes;
use tandem_device::bytes::{MIB, show};
use tandem_device::{HostReading, KernelCache};
use tandem_launch::inventory::host_facts;

use crate::exit::Exit;

use super::report::DoctorReport;

/// With less, only the smallest model starts.
const LEAST_MEMORY_BYTES: u64 = 1024 * MIB;
/// Three checkpoints of a small model.
const LEAST_DISK_BYTES: u64 = 2048 * MIB;
/// Page-locked memory of a typical run.
const TYPICAL_PINNED_BYTES: u64 = 256 * MIB;
const MEMORY_FOLDER: &str = "/dev/shm";

/// Examines it. `run` is the folder of a run.
pub(super) fn examine(run: &Path, is_plain: bool, report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    report.good(&format!("System: {}", system(&read("/proc/version"))))?;
    processor(report)?;
    memory(report)?;
    locked_memory(&read("/proc/self/limits"), report)?;
    match free_bytes(Path::new(MEMORY_FOLDER)) {
        Some(free) => report.good(&format!("{MEMORY_FOLDER}: {} free", show(free)))?,
        None => report.note(&format!("{MEMORY_FOLDER} does not exist; only benchmarks use it"))?,
    }
    disk(run, report)?;
    kernel_cache(KernelCache::find(), report)?;
    match is_plain {
        true => report.note("Terminal: not UTF-8, so emoji are printed as [ok] and [!!]; LANG=C.UTF-8 shows them"),
        false => report.good("Terminal: UTF-8"),
    }
}

fn processor(report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    let name = model_name(&read("/proc/cpuinfo")).unwrap_or_else(|| "unknown".to_owned());
    let cores = host_facts().cores;
    let has = [
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
    ];
    let found: Vec<&str> = has.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    let text = format!("Processor: {name}, {cores} cores for this process, {}", or_none(&found.join(" ")));
    match has[0].1 && has[1].1 {
        true => report.good(&text),
        false => report
            .warning(&text, "without AVX2 and FMA, training on the CPU is many times slower; GPUs are not affected"),
    }
}

fn memory(report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    let HostReading { total_bytes, available_bytes: available, limited_by } = HostReading::now();
    let limit = limited_by.map_or_else(String::new, |limit| format!(" ({limit})"));
    let text = format!("Memory: {} of {} available{limit}", show(available), show(total_bytes));
    match available >= LEAST_MEMORY_BYTES {
        true => report.good(&text),
        false => report.bad(&text, "close other programs, or raise the memory limit of the container"),
    }
}

fn locked_memory(limits: &str, report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    let Some(limit) = locked_limit(limits) else {
        return report.note("Limit of page-locked memory (ulimit -l): unknown");
    };
    let text = format!("Limit of page-locked memory (ulimit -l): {}", limit.map_or("none".to_owned(), show));
    match limit.is_none_or(|limit| limit >= TYPICAL_PINNED_BYTES) {
        true => report.good(&text),
        // The NVIDIA driver usually locks pages past the limit, so this is a failure only if a run reports it.
        false => {
            report.note(&format!("{text}; if a run reports that page-locked memory is refused: ulimit -l unlimited"))
        }
    }
}

fn disk(run: &Path, report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    let place = std::path::absolute(run).unwrap_or_else(|_| run.to_owned());
    let existing = place.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    if let Err(error) = tempfile::tempfile_in(existing) {
        let text = format!("Run folder: cannot write there ({error}): {}", run.display());
        return report.bad(&text, "give a writable folder: --checkpoint-dir DIR");
    }
    let (name, free) = (run.display(), free_bytes(run));
    let text = format!("Run folder: {} free: {name}", free.map_or("an unknown amount".to_owned(), show));
    match free.is_none_or(|free| free >= LEAST_DISK_BYTES) {
        true => report.good(&text),
        false => {
            report.bad(&text, "free space for checkpoints, or give a folder on another disk: --checkpoint-dir DIR")
        }
    }
}

fn kernel_cache(cache: KernelCache, report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    match cache {
        KernelCache::Used(folder) => report.good(&format!("Kernel cache: {}", folder.display())),
        KernelCache::Nowhere => {
            report.note("Kernel cache: none, GPU kernels are compiled at every start; TANDEM_CACHE_DIR=DIR names one")
        }
        KernelCache::Unsafe(folder) => {
            let path = folder.display();
            let text = format!("Kernel cache: not used, because other users can write there: {path}");
            report.warning(&text, &format!("own it alone (chmod go-w {path}), or name another with TANDEM_CACHE_DIR"))
        }
    }
}

fn read(path: &str) -> String {
    // An unreadable file is reported as unknown.
    fs::read_to_string(path).unwrap_or_default()
}

/// `Linux 6.8.0-40-generic`, without the builder's name.
fn system(version: &str) -> String {
    let mut words = version.split_whitespace();
    match (words.next(), words.nth(1)) {
        (Some(name), Some(release)) => format!("{name} {release}, {}", std::env::consts::ARCH),
        _ => "unknown".to_owned(),
    }
}

fn model_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The soft limit. `Some(None)` means unlimited, `None` unknown.
fn locked_limit(limits: &str) -> Option<Option<u64>> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "no AVX" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_parsed() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max locked memory         8388608              unlimited            bytes     \n";
        assert_eq!(locked_limit(limits), Some(Some(8 << 20)));
        assert_eq!(locked_limit(&limits.replace("8388608", "unlimited")), Some(None));
        assert_eq!(locked_limit(""), None);
        assert_eq!(model_name("processor\t: 0\nmodel name\t: AMD EPYC 9654\n").as_deref(), Some("AMD EPYC 9654"));
        assert_eq!(model_name(""), None);
        let version = "Linux version 6.8.0-40-generic (builder@lcy02) (gcc 13) #40 SMP";
        assert_eq!(system(version), "Linux 6.8.0-40-generic, x86_64");
        assert_eq!(system(""), "unknown");
    }
}
