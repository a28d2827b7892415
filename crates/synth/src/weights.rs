//! `weights.safetensors`: the parameters of a model, and the voices that lie beside them.
//!
//! Where there are moving averages of the parameters, those are what speaks. Tensors are read one by one into the caller's
//! memory; whether the file is as it was written is for `state.json` to say, and for those who write it to check.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use tandem_engine::Parameters;
use tandem_model::VoiceReferences;

use crate::error::SynthError;

/// The file's name in a checkpoint.
pub const WEIGHTS_FILE: &str = "weights.safetensors";

/// Begins the name of a parameter's moving average.
const AVERAGE: &str = "ema.";

/// The length of the header, in the file.
const LENGTH_BYTES: u64 = 8;
/// A header of more is none: a tensor takes about a hundred bytes of it.
const MAX_HEADER_BYTES: u64 = 64 << 20;

pub(crate) struct Weights {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, TensorInfo>,
    data_at: u64,
}

impl Weights {
    /// Opens the file of a checkpoint's folder and reads its header.
    pub(crate) fn open(folder: &Path) -> Result<Weights, SynthError> {
        let path = folder.join(WEIGHTS_FILE);
        let unreadable = || SynthError::unreadable(&path);
        let file = File::open(&path).map_err(unreadable())?;
        let file_bytes = file.metadata().map_err(unreadable())?.len();
        let mut length = [0; LENGTH_BYTES as usize];
        let no_header = || SynthError::not_a_model(&path, format!("no safetensors file of {file_bytes} bytes"));
        if file_bytes < LENGTH_BYTES {
            return Err(no_header());
        }
        file.read_exact_at(&mut length, 0).map_err(unreadable())?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER_BYTES.min(file_bytes - LENGTH_BYTES) {
            return Err(no_header());
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, LENGTH_BYTES).map_err(unreadable())?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| SynthError::not_a_model(&path, format!("the header is damaged ({error})")))?;
        let data_at = LENGTH_BYTES + length;
        if data_at.checked_add(metadata.data_len() as u64) != Some(file_bytes) {
            return Err(no_header());
        }
        let names = metadata.offset_keys().into_iter();
        let tensors = names.filter_map(|name| metadata.info(&name).cloned().map(|info| (name, info))).collect();
        Ok(Weights { path, file, tensors, data_at })
    }

    /// All parameters one behind the other, as `parameters` places them.
    pub(crate) fn parameters(&self, parameters: &Parameters) -> Result<Vec<f32>, SynthError> {
        let averaged = parameters.iter().any(|(_, p)| self.tensors.contains_key(&format!("{AVERAGE}{}", p.name)));
        let prefix = if averaged { AVERAGE } else { "" };
        let wanted: Vec<(String, Vec<usize>)> = parameters
            .iter()
            .map(|(_, p)| (format!("{prefix}{}", p.name), p.shape.dims().iter().map(|&dim| dim as usize).collect()))
            .collect();
        self.expect(&wanted)?;
        let mut values = vec![0.0_f32; parameters.elements() as usize];
        for ((_, parameter), (name, _)) in parameters.iter().zip(&wanted) {
            let at = parameter.offset as usize..(parameter.offset + parameter.shape.elements()) as usize;
            self.read_into(name, &mut values[at])?;
        }
        match values.iter().all(|x| x.is_finite()) {
            true => Ok(values),
            false => Err(SynthError::NotFinite { what: "weights" }),
        }
    }

    /// The voices, as far as they are of `mels` bands.
    pub(crate) fn voices(&self, mels: usize) -> Result<VoiceReferences, SynthError> {
        let mut voices = VoiceReferences::default();
        for (name, info) in self.tensors.iter().filter(|(name, _)| name.starts_with(VoiceReferences::PREFIX)) {
            if info.dtype == Dtype::F32 && info.shape.get(1) == Some(&mels) {
                let mut values = vec![0.0; info.shape.iter().product()];
                self.read_into(name, &mut values)?;
                voices.take(name, values, mels);
            }
        }
        Ok(voices)
    }

    fn expect(&self, wanted: &[(String, Vec<usize>)]) -> Result<(), SynthError> {
        let differs = |(name, shape): &&(String, Vec<usize>)| {
            self.tensors.get(name).is_none_or(|found| found.dtype != Dtype::F32 || found.shape != *shape)
        };
        let wrong: Vec<_> = wanted.iter().filter(differs).collect();
        let Some((name, shape)) = wrong.first() else { return Ok(()) };
        let found = match self.tensors.get(name) {
            Some(found) => format!("found {} {:?}", found.dtype, found.shape),
            None => "found none".to_owned(),
        };
        let more = if wrong.len() > 1 { format!(", and {} more differ", wrong.len() - 1) } else { String::new() };
        let problem = format!("`{name}` should be F32 {shape:?}, {found}{more}");
        Err(SynthError::WrongTensors { problem, path: self.path.clone() })
    }

    /// Fills `out` with a tensor of as many f32.
    fn read_into(&self, name: &str, out: &mut [f32]) -> Result<(), SynthError> {
        let info = &self.tensors[name];
        let (start, end) = info.data_offsets;
        assert_eq!(end - start, out.len() * 4, "the buffer for `{name}` has another length than the tensor");
        let bytes = bytemuck::cast_slice_mut(out);
        self.file.read_exact_at(bytes, self.data_at + start as u64).map_err(SynthError::unreadable(&self.path))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use safetensors::tensor::TensorView;
    use tandem_engine::{Init, ParameterList};

    use super::*;

    /// Writes tensors as they are.
    pub(crate) fn write(folder: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
        let view = |(name, shape, values): &(String, Vec<usize>, Vec<f32>)| {
            let bytes: &'static [u8] = bytemuck::cast_slice(values.clone().leak());
            (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        };
        let bytes = safetensors::serialize(tensors.iter().map(view), None).unwrap();
        fs::write(folder.join(WEIGHTS_FILE), bytes).unwrap();
    }

    fn parameters() -> Parameters {
        let mut list = ParameterList::new();
        list.weight("a", &[2, 2], Init::Constant(0.0)).unwrap();
        list.weight("b", &[3], Init::Constant(0.0)).unwrap();
        list.finish()
    }

    fn tensor(name: &str, shape: &[usize], first: f32) -> (String, Vec<usize>, Vec<f32>) {
        let values = (0..shape.iter().product::<usize>()).map(|i| first + i as f32).collect();
        (name.to_owned(), shape.to_vec(), values)
    }

    #[test]
    fn averages_speak_where_there_are_any() {
        let folder = tempfile::tempdir().unwrap();
        let plain = [tensor("a", &[2, 2], 1.0), tensor("b", &[3], 5.0)];
        let check = |tensors: &[_], expected: f32| {
            write(folder.path(), tensors);
            let parameters = parameters();
            let read = Weights::open(folder.path()).unwrap().parameters(&parameters).unwrap();
            let at = parameters.iter().map(|(_, p)| read[p.offset as usize]).collect::<Vec<_>>();
            assert_eq!(at, [expected, expected + 4.0]);
        };
        check(&plain, 1.0);
        let averages = [tensor("ema.a", &[2, 2], 11.0), tensor("ema.b", &[3], 15.0)];
        check(&[plain, averages].concat(), 11.0);
    }

    #[test]
    fn other_tensors_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let check = |tensors: &[_], part: &str| {
            write(folder.path(), tensors);
            let error = Weights::open(folder.path()).unwrap().parameters(&parameters()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check(&[tensor("a", &[2, 2], 0.0)], "`b` should be F32 [3], found none:");
        check(&[tensor("a", &[4], 0.0)], "`a` should be F32 [2, 2], found F32 [4], and 1 more differ");
        check(&[tensor("ema.a", &[2, 2], 0.0), tensor("b", &[3], 0.0)], "`ema.b` should be");
        check(&[tensor("a", &[2, 2], f32::NAN), tensor("b", &[3], 0.0)], "weights are no numbers");
    }

    #[test]
    fn what_is_no_tensor_file_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let check = |bytes: &[u8], part: &str| {
            fs::write(folder.path().join(WEIGHTS_FILE), bytes).unwrap();
            let error = Weights::open(folder.path()).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        };
        check(b"", "no safetensors file of 0 bytes");
        check(&[255; 100], "no safetensors file of 100 bytes");
        check(b"\x02\0\0\0\0\0\0\0[]", "header is damaged");
        check(b"\x02\0\0\0\0\0\0\0{}x", "no safetensors file of 11 bytes");
    }

    #[test]
    fn voices_lie_beside_the_weights() {
        let folder = tempfile::tempdir().unwrap();
        let tensors = [
            tensor("reference.anna", &[400, 2], 1.0),
            tensor("reference.short", &[399, 2], 1.0),
            tensor("reference.other bands", &[400, 3], 1.0),
            tensor("a", &[2, 2], 0.0),
        ];
        write(folder.path(), &tensors);
        let voices = Weights::open(folder.path()).unwrap().voices(2).unwrap();
        assert_eq!(voices.speakers().collect::<Vec<_>>(), ["anna"]);
        assert_eq!(voices.get("anna").unwrap()[..2], [1.0, 2.0]);
    }
}
