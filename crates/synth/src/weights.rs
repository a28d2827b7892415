//! `weights.safetensors`: the parameters of a model, and the voices stored with them.
//!
//! The EMA of the parameters is used if the file has it. Checksums are not compared here: opening a
//! [`Checkpoint`](tandem_checkpoint::Checkpoint) does that.

use std::path::Path;

use tandem_checkpoint::{Dtype, EMA_PREFIX, TensorFile, TensorSpec, WEIGHTS_FILE};
use tandem_engine::Parameters;
use tandem_model::VoiceReferences;

use crate::error::SynthError;

pub(crate) struct Weights {
    file: TensorFile,
}

impl Weights {
    /// Opens the file of a checkpoint folder.
    pub(crate) fn open(folder: &Path) -> Result<Weights, SynthError> {
        Ok(Weights { file: TensorFile::open(&folder.join(WEIGHTS_FILE))? })
    }

    /// All parameters in one vector, at the offsets of `parameters`.
    pub(crate) fn parameters(&self, parameters: &Parameters) -> Result<Vec<f32>, SynthError> {
        let has_ema = parameters.iter().any(|(_, p)| self.file.spec(&format!("{EMA_PREFIX}{}", p.name)).is_some());
        let prefix = if has_ema { EMA_PREFIX } else { "" };
        let expected: Vec<(String, Vec<usize>)> = parameters
            .iter()
            .map(|(_, p)| (format!("{prefix}{}", p.name), p.shape.dims().iter().map(|&dim| dim as usize).collect()))
            .collect();
        let spec = |(name, shape)| TensorSpec { name, dtype: Dtype::F32, shape };
        let specs: Vec<TensorSpec<'_>> =
            expected.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).map(spec).collect();
        self.file.expect_at_least(&specs)?;
        let mut values = vec![0.0_f32; parameters.elements() as usize];
        for ((_, parameter), (name, _)) in parameters.iter().zip(&expected) {
            let at = parameter.offset as usize..(parameter.offset + parameter.shape.elements()) as usize;
            self.file.read_into(name, bytemuck::cast_slice_mut(&mut values[at]))?;
        }
        match values.iter().all(|x| x.is_finite()) {
            true => Ok(values),
            false => Err(SynthError::NotFinite { what: "weights" }),
        }
    }

    /// The voices with `mels` bands.
    pub(crate) fn voices(&self, mels: usize) -> Result<VoiceReferences, SynthError> {
        let mut voices = VoiceReferences::default();
        for name in self.file.names().filter(|name| name.starts_with(VoiceReferences::PREFIX)) {
            let spec = self.file.spec(name).filter(|spec| spec.dtype == Dtype::F32 && spec.shape.get(1) == Some(&mels));
            if let Some(spec) = spec {
                let mut values = vec![0.0; spec.shape.iter().product()];
                self.file.read_into(name, bytemuck::cast_slice_mut(&mut values))?;
                voices.take(name, values, mels);
            }
        }
        Ok(voices)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tandem_checkpoint::TensorRef;
    use tandem_engine::{Init, ParameterList};

    use super::*;

    struct TestTensor {
        name: String,
        shape: Vec<usize>,
        values: Vec<f32>,
    }

    fn write(folder: &Path, tensors: &[TestTensor]) {
        let path = folder.join(WEIGHTS_FILE);
        let _ = fs::remove_file(&path);
        let mut refs = Vec::new();
        for TestTensor { name, shape, values } in tensors {
            refs.push(TensorRef { name, dtype: Dtype::F32, shape, bytes: bytemuck::cast_slice(values) });
        }
        TensorFile::write(&path, &refs).unwrap();
    }

    fn parameters() -> Parameters {
        let mut list = ParameterList::new();
        list.weight("a", &[2, 2], Init::Constant(0.0)).unwrap();
        list.weight("b", &[3], Init::Constant(0.0)).unwrap();
        list.finish()
    }

    fn tensor(name: &str, shape: &[usize], first: f32) -> TestTensor {
        let values = (0..shape.iter().product::<usize>()).map(|i| first + i as f32).collect();
        TestTensor { name: name.to_owned(), shape: shape.to_vec(), values }
    }

    #[test]
    fn the_ema_is_used_if_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let check = |tensors: &[TestTensor], expected: f32| {
            write(folder.path(), tensors);
            let parameters = parameters();
            let read = Weights::open(folder.path()).unwrap().parameters(&parameters).unwrap();
            let at = parameters.iter().map(|(_, p)| read[p.offset as usize]).collect::<Vec<_>>();
            assert_eq!(at, [expected, expected + 4.0]);
        };
        let plain = || [tensor("a", &[2, 2], 1.0), tensor("b", &[3], 5.0)];
        check(&plain(), 1.0);
        let ema = [tensor("ema.a", &[2, 2], 11.0), tensor("ema.b", &[3], 15.0)];
        check(&plain().into_iter().chain(ema).collect::<Vec<_>>(), 11.0);
    }

    #[test]
    fn other_tensors_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let check = |tensors: &[TestTensor], part: &str| {
            write(folder.path(), tensors);
            let error = Weights::open(folder.path()).unwrap().parameters(&parameters()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check(&[tensor("a", &[2, 2], 0.0)], "`b` F32 [3] is missing:");
        check(&[tensor("a", &[4], 0.0)], "`a`: expected [2, 2], found [4]; `b` F32 [3] is missing");
        check(&[tensor("ema.a", &[2, 2], 0.0), tensor("b", &[3], 0.0)], "`ema.b` F32 [3] is missing");
        check(&[tensor("a", &[2, 2], f32::NAN), tensor("b", &[3], 0.0)], "non-finite weights");
    }

    #[test]
    fn voices_are_stored_with_the_weights() {
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
