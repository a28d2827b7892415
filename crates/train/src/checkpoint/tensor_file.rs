//! A safetensors file: written in one pass from borrowed bytes, read tensor by tensor into the caller's.
//!
//! The format is eight bytes with the length of a JSON header, the header, and the tensors one after another. The crate
//! `safetensors` makes and judges the header. The bytes pass through here because it would neither sync them nor sum
//! them up on the way.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};
use twox_hash::XxHash3_64;

use super::expect::{Mismatch, mismatches};
use super::record::FileFacts;
use super::tensor::{Dtype, TensorRef, TensorSpec};
use crate::disk::unusable;
use crate::error::TrainError;

/// The length of the header, in the file.
const LENGTH_BYTES: u64 = 8;
/// The header is filled up to a multiple of this, so that tensors lie aligned.
const ALIGNMENT: usize = 8;
/// Small tensors are gathered up to here; larger ones go to the file as they are.
const GATHERED_BYTES: usize = 1 << 20;

/// A tensor file that was checked against its length and checksum, and is held open: it stays readable even when the
/// checkpoint is rotated away.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, InFile>,
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub(super) struct InFile {
    pub(super) dtype: safetensors::Dtype,
    pub(super) shape: Vec<usize>,
    at: u64,
    num_bytes: usize,
}

impl TensorFile {
    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// What the tensor `name` is. `None` when there is none, and for types of elements that we never write.
    pub fn spec(&self, name: &str) -> Option<TensorSpec<'_>> {
        let (name, tensor) = self.tensors.get_key_value(name)?;
        Some(TensorSpec { name, dtype: Dtype::from_file(tensor.dtype)?, shape: &tensor.shape })
    }

    /// Succeeds when the file holds exactly these tensors. Fails with [`TrainError::WrongTensors`], which has every
    /// difference.
    pub fn expect(&self, specs: &[TensorSpec<'_>]) -> Result<(), TrainError> {
        let mismatches: Vec<Mismatch> = mismatches(specs, &self.tensors);
        if mismatches.is_empty() {
            return Ok(());
        }
        Err(TrainError::WrongTensors { mismatches, path: self.path.clone() })
    }

    /// Fills `out`, which has the tensor's length, with its bytes. Cost: reading them.
    pub fn read_into(&self, name: &str, out: &mut [u8]) -> Result<(), TrainError> {
        let tensor = self.tensor(name)?;
        assert_eq!(out.len(), tensor.num_bytes, "the buffer for `{name}` has another length than the tensor");
        self.file.read_exact_at(out, tensor.at).map_err(unusable("read", &self.path))
    }

    /// The tensor's bytes, in memory of their own.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, TrainError> {
        let mut bytes = vec![0; self.tensor(name)?.num_bytes];
        self.read_into(name, &mut bytes)?;
        Ok(bytes)
    }

    /// Opens the file and compares it with what was written. Cost: reading all of it once, through 1 MiB of memory.
    pub(super) fn open(path: &Path, facts: &FileFacts) -> Result<TensorFile, TrainError> {
        let file = open_checked(path, facts)?;
        let damaged = |reason| TrainError::Damaged { reason, path: path.to_owned() };
        let tensors = read_header(&file, facts.bytes).map_err(unusable("read", path))?.map_err(damaged)?;
        Ok(TensorFile { path: path.to_owned(), file, tensors })
    }

    fn tensor(&self, name: &str) -> Result<&InFile, TrainError> {
        let missing = || TrainError::NoSuchTensor { name: name.to_owned(), path: self.path.clone() };
        self.tensors.get(name).ok_or_else(missing)
    }
}

/// Bytes of a file with these tensors, exactly.
pub fn tensor_file_bytes(specs: &[TensorSpec<'_>]) -> u64 {
    let header = header(specs);
    let tensors: u64 = specs.iter().map(|spec| spec.num_bytes() as u64).sum();
    LENGTH_BYTES + header.len() as u64 + tensors
}

/// Makes the file, waits until it is on the disk, and returns what it is.
pub(super) fn write(path: &Path, tensors: &[TensorRef<'_>]) -> io::Result<FileFacts> {
    let mut out = Summed::new(BufWriter::with_capacity(GATHERED_BYTES, File::create_new(path)?));
    write_into(&mut out, tensors)?;
    let (file, facts) = out.finish();
    file.into_inner()?.sync_all()?;
    Ok(facts)
}

/// Opens a file and compares its length and checksum with what was written.
pub(super) fn open_checked(path: &Path, facts: &FileFacts) -> Result<File, TrainError> {
    let damaged = |reason| TrainError::Damaged { reason, path: path.to_owned() };
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged("the file is missing".into())),
        opened => opened.map_err(unusable("open", path))?,
    };
    let found = file.metadata().map_err(unusable("read", path))?.len();
    if found != facts.bytes {
        return Err(damaged(format!("expected {} bytes, found {found}", facts.bytes)));
    }
    let mut sum = Summed::new(io::sink());
    let mut buffer = vec![0; GATHERED_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(num_bytes) => sum.add(&buffer[..num_bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unusable("read", path)(error)),
        }
    }
    let found = sum.finish().1;
    if found != *facts {
        return Err(damaged(format!("expected checksum {}, found {}", facts.xxh3, found.xxh3)));
    }
    Ok(file)
}

fn write_into(out: &mut impl Write, tensors: &[TensorRef<'_>]) -> io::Result<()> {
    let mut tensors = tensors.to_vec();
    for tensor in &tensors {
        let (spec, len) = (tensor.spec(), tensor.bytes.len());
        assert_eq!(spec.num_bytes(), len, "`{}`: {} {:?} and {len} bytes", spec.name, spec.dtype, spec.shape);
    }
    let header = header(&tensors.iter().map(TensorRef::spec).collect::<Vec<_>>());
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    tensors.sort_by(|a, b| order(&a.spec(), &b.spec()));
    for tensor in tensors {
        out.write_all(tensor.bytes)?;
    }
    Ok(())
}

/// Wide elements first, so that all lie aligned; then by name, so that equal tensors make equal files.
fn order(a: &TensorSpec<'_>, b: &TensorSpec<'_>) -> std::cmp::Ordering {
    (b.dtype.num_bytes(), a.name).cmp(&(a.dtype.num_bytes(), b.name))
}

fn header(specs: &[TensorSpec<'_>]) -> Vec<u8> {
    let mut specs = specs.to_vec();
    specs.sort_by(order);
    let mut end = 0;
    let mut infos = Vec::with_capacity(specs.len());
    for spec in &specs {
        let start = end;
        end += spec.num_bytes();
        let info = TensorInfo { dtype: spec.dtype.in_file(), shape: spec.shape.to_vec(), data_offsets: (start, end) };
        infos.push((spec.name.to_owned(), info));
    }
    let names: std::collections::HashSet<_> = specs.iter().map(|spec| spec.name).collect();
    assert_eq!(names.len(), specs.len(), "every tensor of a file has a name of its own");
    assert!(!names.contains("__metadata__"), "the format keeps that name for itself");
    let header = Metadata::new(None, infos).map(|metadata| serde_json::to_vec(&metadata));
    let Ok(Ok(mut header)) = header else { unreachable!("offsets without gaps, and strings, have a header") };
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
    header
}

/// The outer error is the disk's, the inner one says what is wrong with the header.
fn read_header(file: &File, file_bytes: u64) -> io::Result<Result<BTreeMap<String, InFile>, String>> {
    if file_bytes < LENGTH_BYTES {
        return Ok(Err(format!("no safetensors file: expected a header, found {file_bytes} bytes")));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact_at(&mut length, 0)?;
    let length = u64::from_le_bytes(length);
    if length > file_bytes - LENGTH_BYTES {
        return Ok(Err(format!("no safetensors file: a header of {length} bytes in a file of {file_bytes}")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact_at(&mut header, LENGTH_BYTES)?;
    Ok(parse_header(&header, file_bytes))
}

fn parse_header(header: &[u8], file_bytes: u64) -> Result<BTreeMap<String, InFile>, String> {
    let metadata: Metadata =
        serde_json::from_slice(header).map_err(|error| format!("the header of the tensors is damaged ({error})"))?;
    let data_at = LENGTH_BYTES + header.len() as u64;
    let expected = data_at.saturating_add(metadata.data_len() as u64);
    if expected != file_bytes {
        return Err(format!("the header speaks of {expected} bytes, found {file_bytes}"));
    }
    let in_file = |name: String| {
        let info = metadata.info(&name)?.clone();
        let (start, end) = info.data_offsets;
        let at = data_at + start as u64;
        Some((name, InFile { dtype: info.dtype, shape: info.shape, at, num_bytes: end - start }))
    };
    Ok(metadata.offset_keys().into_iter().filter_map(in_file).collect())
}

/// Sums up what passes through.
struct Summed<W> {
    inner: W,
    hasher: XxHash3_64,
    bytes: u64,
}

impl<W> Summed<W> {
    fn new(inner: W) -> Summed<W> {
        Summed { inner, hasher: XxHash3_64::with_seed(0), bytes: 0 }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.hasher.write(bytes);
        self.bytes += bytes.len() as u64;
    }

    fn finish(self) -> (W, FileFacts) {
        (self.inner, FileFacts { bytes: self.bytes, xxh3: format!("{:016x}", self.hasher.finish()) })
    }
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.add(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests;
