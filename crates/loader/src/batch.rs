//! A batch as tensors of another library.
//!
//! A tensor is a pointer, a type, a shape and strides: what DLPack needs. Whoever reads it says on which stream, and the memory
//! is not reused before that stream is done. A batch is released when the last of its clones is dropped, on any thread.

use std::sync::Arc;

use tandem_corpus::SampleIndex;
use tandem_device::{DType, DeviceKind};
use tandem_feed::{BatchInfo, Dim, Placed, SharedBatch, TrainingSet, Utterance};

use crate::LoaderError;
use crate::held::{HeldBatch, HeldBatches};

/// Where tensors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorDevice {
    /// Host memory.
    Cpu,
    /// A card, by CUDA's number.
    Cuda(i32),
}

/// A tensor of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: &'static str,
    /// Type of its elements.
    pub dtype: DType,
    /// Its shape, outermost first.
    pub shape: Vec<i64>,
    /// Elements from one index to the next, for each dimension.
    pub strides: Vec<i64>,
}

/// On which stream a reader reads: the `stream` argument of `__dlpack__`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerStream {
    /// The host reads: there is no stream.
    Host,
    /// The reader synchronises by itself (-1): it waits with [`TensorBatch::synchronize`], and has read a tensor when it drops
    /// it, or names its stream with [`TensorBatch::record_stream`].
    Unsynchronized,
    /// A stream by its handle. 1 is CUDA's legacy default stream, 2 that of the calling thread.
    Handle(u64),
}

impl ConsumerStream {
    /// Reads the argument as the Python array API defines it. Fails with a sentence.
    pub fn from_dlpack(device: TensorDevice, stream: Option<i64>) -> Result<ConsumerStream, String> {
        match (device, stream) {
            (TensorDevice::Cpu, None) => Ok(ConsumerStream::Host),
            (TensorDevice::Cpu, Some(-1)) => Ok(ConsumerStream::Unsynchronized),
            (TensorDevice::Cpu, Some(stream)) => Err(format!("stream: expected None on the CPU, found {stream}")),
            // The legacy default stream is what a library without streams of its own works on.
            (TensorDevice::Cuda(_), None) => Ok(ConsumerStream::Handle(1)),
            (TensorDevice::Cuda(_), Some(-1)) => Ok(ConsumerStream::Unsynchronized),
            (TensorDevice::Cuda(_), Some(0)) => {
                Err("stream: 0 is ambiguous: 1 is the legacy default stream, 2 that of the calling thread".to_owned())
            }
            (TensorDevice::Cuda(_), Some(stream)) => match u64::try_from(stream) {
                Ok(handle) => Ok(ConsumerStream::Handle(handle)),
                Err(_) => Err(format!("stream: expected None, -1, 1, 2 or a pointer, found {stream}")),
            },
        }
    }
}

/// A batch. Clones are the same batch; its memory is in use until the last of them is dropped.
#[derive(Clone)]
pub struct TensorBatch {
    inner: Arc<Inner>,
}

struct Inner {
    // Dropped before it is taken off the list: who sees it gone finds its slot free.
    shared: Option<SharedBatch>,
    tensors: Vec<TensorInfo>,
    device: TensorDevice,
    rows: Arc<TrainingSet>,
    held: HeldBatches,
    sequence: u64,
}

/// How the tensors of a batch are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorStyle {
    /// `[batch, bands, time]` in place of `[batch, time, bands]`.
    pub(crate) channels_first: bool,
    /// Shapes of the bucket; otherwise as long as the longest row of the batch.
    pub(crate) static_shapes: bool,
}

impl TensorBatch {
    pub(crate) fn new(
        shared: SharedBatch,
        rows: &Arc<TrainingSet>,
        held: &HeldBatches,
        style: TensorStyle,
    ) -> Result<TensorBatch, LoaderError> {
        let machine = shared.device().machine();
        let device = match (machine.kind(), shared.device().ordinal()) {
            (DeviceKind::Cuda, Some(ordinal)) => TensorDevice::Cuda(ordinal),
            // The host reads simulated memory too.
            _ => TensorDevice::Cpu,
        };
        if device == TensorDevice::Cpu {
            shared.synchronize()?;
        }
        let info = shared.info();
        let tensors = info.layout.fields.iter().map(|placed| tensor(placed, info, style)).collect();
        let sequence = info.sequence;
        held.add(sequence, HeldBatch { epoch: info.cursor.epoch, index: info.cursor.k, tensors: Vec::new() });
        let (rows, held) = (Arc::clone(rows), held.clone());
        Ok(TensorBatch { inner: Arc::new(Inner { shared: Some(shared), tensors, device, rows, held, sequence }) })
    }

    /// Its tensors.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.inner.tensors
    }

    /// The address of a tensor's first element, a multiple of 256.
    pub fn pointer(&self, tensor: usize) -> u64 {
        let name = self.inner.tensors[tensor].name;
        self.inner.held.handed_out(self.inner.sequence, name);
        match self.shared().field(name) {
            Some(field) => field.view.pointer(),
            None => unreachable!("tensors are the fields of the batch"),
        }
    }

    /// Where its tensors are.
    pub fn device(&self) -> TensorDevice {
        self.inner.device
    }

    /// Before a reader reads: its stream waits for the batch, and the memory is reused only after the work that is queued
    /// there when the batch is released. The host does not wait.
    pub fn read_on(&self, stream: ConsumerStream) -> Result<(), LoaderError> {
        match stream {
            ConsumerStream::Handle(handle) => Ok(self.shared().read_on(handle)?),
            ConsumerStream::Host | ConsumerStream::Unsynchronized => Ok(()),
        }
    }

    /// Blocks the host until the batch is there: for readers that synchronise by themselves.
    pub fn synchronize(&self) -> Result<(), LoaderError> {
        Ok(self.shared().synchronize()?)
    }

    /// Adds a stream that reads the batch too, and was made to wait for it by other means: the memory is reused only after the
    /// work that is queued there when the batch is released. It must be a stream of this device, and exist until then.
    pub fn record_stream(&self, handle: u64) -> Result<(), LoaderError> {
        if self.device() != TensorDevice::Cpu {
            self.shared().add_reader(handle);
        }
        Ok(())
    }

    /// The ids of its utterances, row by row.
    pub fn ids(&self) -> Vec<String> {
        self.of_rows(|sample| sample.id.to_owned())
    }

    /// The texts of its utterances as they are in the corpus, row by row.
    pub fn texts(&self) -> Vec<String> {
        self.of_rows(|sample| sample.text.to_owned())
    }

    /// Its epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.info().cursor.epoch
    }

    /// Its number among all batches of the epoch, those of other ranks included.
    pub fn index(&self) -> u64 {
        self.info().cursor.k
    }

    /// The shape it has, as a number from 0.
    pub fn bucket(&self) -> usize {
        self.info().bucket_index
    }

    fn of_rows(&self, value: impl Fn(&tandem_corpus::Sample<'_>) -> String) -> Vec<String> {
        let sample = |index: SampleIndex| self.inner.rows.dataset().get(index).map(|sample| value(&sample));
        let rows = self.info().utterances.iter();
        rows.map(|row| row.and_then(|row| sample(row.sample)).unwrap_or_default()).collect()
    }

    fn info(&self) -> &Arc<BatchInfo> {
        self.shared().info()
    }

    fn shared(&self) -> &SharedBatch {
        match &self.inner.shared {
            Some(shared) => shared,
            None => unreachable!("only a drop takes it"),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.shared.take());
        self.held.remove(self.sequence);
    }
}

/// The tensor of a field: rows have one length, so that what is stored back to back is `[batch, time, ...]`.
fn tensor(placed: &Placed, info: &BatchInfo, style: TensorStyle) -> TensorInfo {
    let (bucket, sizes) = (&info.bucket, info.layout.sizes);
    let [batch, frames, tokens, mels, hop] =
        [bucket.batch(), bucket.longest_frames(), bucket.longest_tokens(), sizes.mels, sizes.hop_samples]
            .map(|size| size as i64);
    let longest = |of: fn(&Utterance) -> u32, room: i64| {
        let longest = info.utterances.iter().flatten().map(of).max().unwrap_or(0);
        if style.static_shapes { room } else { i64::from(longest).min(room) }
    };
    let shown_frames = longest(|row| row.frames, frames);
    let (shape, strides) = match placed.field.dims {
        [Dim::Tokens] => (vec![batch, longest(|row| row.tokens, tokens)], vec![tokens, 1]),
        [Dim::Frames] => (vec![batch, shown_frames], vec![frames, 1]),
        [Dim::Samples] => (vec![batch, shown_frames * hop], vec![frames * hop, 1]),
        [Dim::Frames, Dim::Mels] if style.channels_first => {
            (vec![batch, mels, shown_frames], vec![frames * mels, 1, mels])
        }
        [Dim::Frames, Dim::Mels] => (vec![batch, shown_frames, mels], vec![frames * mels, mels, 1]),
        _ => (vec![batch], vec![1]),
    };
    TensorInfo { name: placed.field.name, dtype: placed.field.dtype, shape, strides }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_mean_what_the_array_api_says() {
        let card = |stream| ConsumerStream::from_dlpack(TensorDevice::Cuda(0), stream);
        assert_eq!(card(None), Ok(ConsumerStream::Handle(1)));
        assert_eq!((card(Some(1)), card(Some(2))), (Ok(ConsumerStream::Handle(1)), Ok(ConsumerStream::Handle(2))));
        assert_eq!(card(Some(-1)), Ok(ConsumerStream::Unsynchronized));
        assert_eq!(card(Some(0x7f00_1234)), Ok(ConsumerStream::Handle(0x7f00_1234)));
        assert!(card(Some(0)).unwrap_err().contains("ambiguous") && card(Some(-2)).is_err());
        let host = |stream| ConsumerStream::from_dlpack(TensorDevice::Cpu, stream);
        assert_eq!((host(None), host(Some(-1))), (Ok(ConsumerStream::Host), Ok(ConsumerStream::Unsynchronized)));
        assert!(host(Some(1)).is_err());
    }
}
