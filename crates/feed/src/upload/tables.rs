//! The tables of an upload, after the samples: lengths, sample rates, tokens, speakers, languages, voice references.

use tandem_corpus::Batch;
use tandem_text::SymbolTable;

use crate::batch::feed_plan::ByteSpan;
use crate::batch::shape::RowShape;
use crate::collate::reference_pick;
use crate::load::input::Input;
use crate::load::loaded::LoadedRow;
use crate::survey::tokenizer::Tokenizer;

/// Writes the tables of a batch. `memory` is the upload's memory after the samples.
pub(crate) fn write_tables(input: &Input, batch: &Batch, rows: &[LoadedRow], memory: &mut [u8]) {
    let shape = input.layout_of(batch);
    let layout = &shape.upload;
    let base = layout.audio.bytes;
    let mut put = |span: ByteSpan, values: &mut dyn Iterator<Item = u32>| {
        let at = (span.offset - base) as usize;
        let words = memory[at..][..span.bytes as usize].chunks_exact_mut(4);
        words.zip(values).for_each(|(word, value)| word.copy_from_slice(&value.to_le_bytes()));
    };
    put(layout.in_lengths, &mut rows.iter().map(|row| row.in_samples));
    put(layout.out_lengths, &mut rows.iter().map(|row| row.out_samples));
    put(layout.rates, &mut rows.iter().map(|row| row.rate));
    if let Some(offsets) = layout.pitch_offsets {
        put(offsets, &mut rows.iter().map(|row| row.pitch_offset));
    }
    let pad = input.training_set.tokenizer().map_or(SymbolTable::PAD, Tokenizer::pad);
    let padded = |(row, room): (&LoadedRow, &RowShape)| {
        let mut ids = row.tokens.clone();
        ids.resize(room.tokens as usize, pad);
        ids
    };
    let hop_samples = input.plan.schema.sizes.hop_samples as u32;
    let fields: [(Option<ByteSpan>, &mut dyn Iterator<Item = u32>); 6] = [
        (layout.text, &mut rows.iter().zip(shape.bucket.rows()).flat_map(padded)),
        (layout.text_lengths, &mut rows.iter().map(|row| row.tokens.len() as u32)),
        (layout.mel_lengths, &mut rows.iter().map(|row| row.frames)),
        // As many hops as there are frames: a rest of less than a hop has no frame.
        (layout.waveform_lengths, &mut rows.iter().map(|row| row.out_samples.min(row.frames * hop_samples))),
        (layout.speaker, &mut rows.iter().map(|row| row.speaker)),
        (layout.language, &mut rows.iter().map(|row| row.language)),
    ];
    for (span, values) in fields {
        if let Some(span) = span {
            put(span, values);
        }
    }
    if let Some(picks) = layout.picks {
        let pick = |position| {
            let pick = reference_pick(input.seed, batch.cursor, rows, position);
            [pick.row, pick.start]
        };
        put(picks, &mut (0..rows.len()).flat_map(pick));
    }
}
