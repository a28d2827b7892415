//! A small corpus of synthetic speech, and batches read on the host.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use tandem_loader::{DType, Loader, LoaderError, LoaderOptions, Next, TensorBatch, write_demo};

/// Longer than anything that does not hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Two minutes of speech, written once.
pub(crate) fn corpus() -> &'static PathBuf {
    static CORPUS: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = CORPUS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = write_demo(&folder.path().join("demo"), 2.0).unwrap();
        (folder, path)
    });
    path
}

/// The corpus on the CPU, with changes.
pub(crate) fn options(changes: Value) -> Value {
    let mut options = json!({ "source": corpus(), "device": "cpu", "batch_size": 4, "buckets": 3, "workers": 2 });
    let (Value::Object(all), Value::Object(changes)) = (&mut options, changes) else { unreachable!() };
    all.extend(changes);
    options
}

pub(crate) fn open(changes: Value) -> Result<Loader, LoaderError> {
    Loader::open(LoaderOptions::from_json(&options(changes))?)
}

/// A batch, copied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Copied {
    pub(crate) epoch: u64,
    pub(crate) index: u64,
    pub(crate) ids: Vec<String>,
    /// Name, shape, and the elements in the order of the shape as bits.
    pub(crate) tensors: Vec<(&'static str, Vec<i64>, Vec<u32>)>,
}

impl Copied {
    pub(crate) fn tensor(&self, name: &str) -> (&[i64], &[u32]) {
        let (_, shape, values) = self.tensors.iter().find(|(other, _, _)| *other == name).unwrap();
        (shape, values)
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.tensor(name).1.iter().copied().map(f32::from_bits).collect()
    }
}

/// Copies a batch by its pointers, shapes and strides, as another library would.
pub(crate) fn copied(batch: &TensorBatch) -> Copied {
    let tensor = |(number, info): (usize, &tandem_loader::TensorInfo)| {
        assert!(matches!(info.dtype, DType::F32 | DType::I32), "four bytes each");
        let pointer = batch.pointer(number);
        assert_eq!(pointer % 256, 0, "{}", info.name);
        let last: i64 = info.shape.iter().zip(&info.strides).map(|(size, stride)| (size - 1) * stride).sum();
        let memory = read_memory(pointer, 4 * (last as usize + 1));
        let mut values = Vec::new();
        let mut index = vec![0_i64; info.shape.len()];
        let count: i64 = info.shape.iter().product();
        for _ in 0..count {
            let offset: i64 = index.iter().zip(&info.strides).map(|(i, stride)| i * stride).sum();
            let bytes = memory[4 * offset as usize..][..4].try_into().unwrap();
            values.push(u32::from_le_bytes(bytes));
            for (i, size) in index.iter_mut().zip(&info.shape).rev() {
                *i += 1;
                if *i < *size {
                    break;
                }
                *i = 0;
            }
        }
        (info.name, info.shape.clone(), values)
    };
    let tensors = batch.tensors().iter().enumerate().map(tensor).collect();
    Copied { epoch: batch.epoch(), index: batch.index(), ids: batch.ids(), tensors }
}

/// Bytes of this process by their address, as the system shows them: no code here dereferences it.
fn read_memory(address: u64, bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    std::fs::File::open("/proc/self/mem").unwrap().read_exact_at(&mut memory, address).unwrap();
    memory
}

pub(crate) fn next(loader: &mut Loader) -> Option<TensorBatch> {
    loop {
        match loader.next_batch(PATIENCE).unwrap() {
            Next::Batch(batch) => return Some(batch),
            Next::EpochEnd => return None,
            Next::NotReady => {}
        }
    }
}

/// The next `count` batches, over the ends of epochs.
pub(crate) fn take(loader: &mut Loader, count: usize) -> Vec<Copied> {
    let mut batches = Vec::new();
    while batches.len() < count {
        batches.extend(next(loader).map(|batch| copied(&batch)));
    }
    batches
}
