//! The tensors a batch can have.

use std::borrow::Cow;

use tandem_audio::FeatureSettings;
use tandem_device::DType;
use tandem_feed::{BatchSchema, Dim, FeatureSizes, FieldSpec};

use crate::LoaderError;
use crate::options::nearest;

/// Every tensor a batch can have, with its dimensions before they are shown as `[batch, time, ...]`.
pub const FIELDS: [FieldSpec; 10] = [
    FieldSpec { name: "text", dtype: DType::I32, dims: &[Dim::Tokens] },
    FieldSpec { name: "text_lengths", dtype: DType::I32, dims: &[Dim::B] },
    FieldSpec { name: "mel", dtype: DType::F32, dims: &[Dim::Frames, Dim::Mels] },
    FieldSpec { name: "mel_lengths", dtype: DType::I32, dims: &[Dim::B] },
    FieldSpec { name: "energy", dtype: DType::F32, dims: &[Dim::Frames] },
    FieldSpec { name: "pitch", dtype: DType::F32, dims: &[Dim::Frames] },
    FieldSpec { name: "waveform", dtype: DType::F32, dims: &[Dim::Samples] },
    FieldSpec { name: "waveform_lengths", dtype: DType::I32, dims: &[Dim::B] },
    FieldSpec { name: "speaker", dtype: DType::I32, dims: &[Dim::B] },
    FieldSpec { name: "language", dtype: DType::I32, dims: &[Dim::B] },
];

/// The default fields.
pub(crate) const DEFAULT_FIELDS: [&str; 5] = ["text", "text_lengths", "mel", "mel_lengths", "speaker"];

/// The schema of batches with the fields `names`, in the order of [`FIELDS`].
pub(crate) fn schema(names: &[String], features: &FeatureSettings) -> Result<BatchSchema, LoaderError> {
    let known = FIELDS.map(|field| field.name);
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let (nearest, known) = (nearest(unknown, &known), known.join(", "));
        return Err(LoaderError::Option(format!("fields: there is no field {unknown:?}{nearest}; there are {known}")));
    }
    if names.is_empty() {
        return Err(LoaderError::Option("fields: expected at least one, found an empty list".to_owned()));
    }
    let has = |name: &str| names.iter().any(|other| other == name);
    if has("energy") && !has("mel") {
        return Err(LoaderError::Option("fields: \"energy\" is made with \"mel\": add it".to_owned()));
    }
    let fields: Vec<FieldSpec> = FIELDS.into_iter().filter(|field| has(field.name)).collect();
    Ok(BatchSchema { fields: Cow::Owned(fields), sizes: FeatureSizes::from(features) })
}

/// Whether a batch with these fields needs texts.
pub(crate) fn with_text(schema: &BatchSchema) -> bool {
    schema.has("text") || schema.has("text_lengths") || schema.has("language")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(names: &[&str]) -> Result<Vec<&'static str>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let schema = schema(&names, &FeatureSettings::default()).map_err(|error| error.to_string())?;
        Ok(schema.fields.iter().map(|field| field.name).collect())
    }

    #[test]
    fn fields_have_one_order_and_unknown_ones_are_named() {
        assert_eq!(fields(&["mel_lengths", "text", "mel"]), Ok(vec!["text", "mel", "mel_lengths"]));
        let refused = fields(&["mels"]).unwrap_err();
        assert!(refused.contains("\"mels\"") && refused.contains("did you mean \"mel\"?"), "{refused}");
        assert!(fields(&[]).unwrap_err().contains("empty"));
        assert!(fields(&["energy"]).unwrap_err().contains("add it"));
    }
}
