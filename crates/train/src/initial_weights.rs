//! The first weights of a run: random, or those of another model (fine-tuning).
//!
//! Weights are matched by name. The embeddings of symbols and languages are matched row by row, by symbol and by tag: a
//! token id means another symbol in another run. Symbols that the other model does not know keep their random vectors.
//! Without a language embedding in the other model, those of this one start at zero, so that nothing changes at step 0.

use tandem_checkpoint::{Checkpoint, Dtype, EMA_PREFIX, ModelText, TensorFile};
use tandem_engine::{Parameter, Parameters};
use tandem_model::{LANGUAGE_EMBEDDING, SYMBOL_EMBEDDING};

use crate::error::TrainError;

/// The other model, and the texts of this one.
#[derive(Clone, Copy, Debug)]
pub struct InitSource<'a> {
    /// The checkpoint of the other model.
    pub checkpoint: &'a Checkpoint,
    /// How this run turns texts into tokens.
    pub text: Option<&'a ModelText>,
}

/// What was taken from the other model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitReport {
    /// Symbols of this run that the other model knows.
    pub known_symbols: usize,
    /// Those it does not know, which start with random vectors.
    pub new_symbols: Vec<String>,
    /// Tags of languages that the other model does not know.
    pub new_languages: Vec<String>,
}

/// The random weights of a run.
pub fn random_weights(parameters: &Parameters, seed: u64) -> Vec<f32> {
    parameters.initial(seed).into_iter().map(|x| x as f32).collect()
}

/// The weights of another model for this one. EMA weights where there are any: they are the better model.
///
/// Fails with [`TrainError::ForeignInit`] if a tensor is missing or has another shape: every one that differs is named.
pub fn weights_from(
    source: InitSource<'_>,
    parameters: &Parameters,
    seed: u64,
) -> Result<(Vec<f32>, InitReport), TrainError> {
    let InitSource { checkpoint, text } = source;
    let mut values = random_weights(parameters, seed);
    let names = text.zip(checkpoint.model.text.as_ref());
    let new_languages = names.map(|(new, old)| {
        let known = tags(old);
        tags(new).into_iter().filter(|tag| !known.contains(tag)).collect()
    });
    let mut report = InitReport { new_languages: new_languages.unwrap_or_default(), ..InitReport::default() };
    let mut different = Vec::new();
    for (_, parameter) in parameters.iter() {
        let at = parameter.offset as usize..(parameter.offset + parameter.shape.elements()) as usize;
        let row = parameter.shape.dims().get(1).map_or(1, |&width| width as usize);
        let found = tensor(&checkpoint.weights, parameter)?;
        match (parameter.name.as_ref(), names, found) {
            (SYMBOL_EMBEDDING, Some((new, old)), Some(found)) if found.row == row => {
                let taken = take_rows(&mut values[at], &found, &new.symbols, &old.symbols);
                report.known_symbols = new.symbols.len() - taken.len();
                report.new_symbols = taken;
            }
            (LANGUAGE_EMBEDDING, Some((new, old)), found) => {
                values[at.clone()].fill(0.0);
                if let Some(found) = found.filter(|found| found.row == row) {
                    take_rows(&mut values[at], &found, &tags(new), &tags(old));
                }
            }
            (_, _, Some(found)) if found.shape == shape_of(parameter) => values[at].copy_from_slice(&found.values),
            (name, _, found) => {
                let found = found.map_or_else(|| "nothing".to_owned(), |found| format!("{:?}", found.shape));
                different.push(format!("{name}: expected {:?}, found {found}", shape_of(parameter)));
            }
        }
    }
    match different.is_empty() {
        true => Ok((values, report)),
        false => Err(TrainError::ForeignInit { different, path: checkpoint.path.clone() }),
    }
}

fn tags(text: &ModelText) -> Vec<String> {
    text.languages.iter().map(|rules| rules.tag.clone()).collect()
}

/// A tensor of the other model.
struct Found {
    shape: Vec<usize>,
    /// Elements of a row.
    row: usize,
    values: Vec<f32>,
}

fn shape_of(parameter: &Parameter) -> Vec<usize> {
    parameter.shape.dims().iter().map(|&dim| dim as usize).collect()
}

fn tensor(file: &TensorFile, parameter: &Parameter) -> Result<Option<Found>, TrainError> {
    let names = [format!("{EMA_PREFIX}{}", parameter.name), parameter.name.to_string()];
    let Some(name) = names.iter().find(|name| file.spec(name).is_some()) else { return Ok(None) };
    let Some(spec) = file.spec(name).filter(|spec| spec.dtype == Dtype::F32) else { return Ok(None) };
    let shape = spec.shape.to_vec();
    let mut values = vec![0.0_f32; shape.iter().product()];
    file.read_into(name, bytemuck::cast_slice_mut(&mut values))?;
    Ok(Some(Found { row: shape.get(1).copied().unwrap_or(1), shape, values }))
}

/// Copies the rows whose names both models know. Returns the names that the other does not know.
fn take_rows(values: &mut [f32], found: &Found, new: &[String], old: &[String]) -> Vec<String> {
    let mut unknown = Vec::new();
    for (name, row) in new.iter().zip(values.chunks_exact_mut(found.row)) {
        let from = old.iter().position(|other| other == name);
        match from.and_then(|from| found.values.chunks_exact(found.row).nth(from)) {
            Some(from) => row.copy_from_slice(from),
            None => unknown.push(name.clone()),
        }
    }
    unknown
}
