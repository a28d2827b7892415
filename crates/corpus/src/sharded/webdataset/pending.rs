//! A sample whose members are being read.

use std::sync::Arc;

use tandem_shards::{ShardFault, TarMember, ValueAddress};
use tandem_storage::ReadAt;

use super::members::ShardMembers;
use super::metadata::{Metadata, as_text};
use crate::format::endings;
use crate::json_value::RejectedRow;
use crate::locator::EXTENSIONS;
use crate::problem::{ProblemKind, excerpt};
use crate::recording_reader::RecordingReader;
use crate::sharded::scan::{ShardRow, ShardScan};

/// The most members of a sample that are read. More come from names that differ only after their first dot.
const MAX_MEMBERS: usize = 64;

/// Members that a message names.
const MAX_NAMED: usize = 4;

/// Extensions of texts, the one preferred first: what is said before what is written.
const TEXT_EXTENSIONS: [&str; 5] = ["normalized.txt", "txt", "text", "transcript", "lab"];

/// What is known of a sample.
pub(super) struct PendingSample {
    pub(super) key: String,
    /// Its number in the shard, from 1.
    number: u32,
    num_members: usize,
    /// The first of them, for messages.
    names: Vec<String>,
    recording: Option<TarMember>,
    text: Option<TextFile>,
    metadata: Option<Metadata>,
    /// What is wrong with its texts, first.
    fault: Option<RejectedRow>,
}

/// The text of a sample from a file of its own.
struct TextFile {
    /// The place of its extension in [`TEXT_EXTENSIONS`].
    rank: usize,
    text: String,
}

/// What a member is to its sample.
enum MemberRole {
    Recording,
    Text { rank: usize },
    Metadata,
    None,
}

impl PendingSample {
    pub(super) fn new(number: u32, key: &str) -> PendingSample {
        let (names, key) = (Vec::new(), key.to_owned());
        PendingSample { key, number, num_members: 0, names, recording: None, text: None, metadata: None, fault: None }
    }

    /// Takes a member into account. Fails when the archive cannot be read any further.
    pub(super) fn add(
        &mut self,
        member: &TarMember,
        extension: &str,
        members: &mut ShardMembers,
        scan: &mut ShardScan<'_>,
    ) -> Result<(), ShardFault> {
        self.num_members += 1;
        if self.num_members > MAX_MEMBERS {
            return Ok(());
        }
        if self.names.len() < MAX_NAMED {
            self.names.push(excerpt(&member.name));
        }
        let read = match MemberRole::of(extension) {
            MemberRole::Recording => {
                self.add_recording(member, scan);
                Ok(())
            }
            MemberRole::Text { rank } => match members.read_text(member)? {
                Ok(bytes) => as_text(bytes).map(|text| self.add_text(rank, text)),
                Err(reason) => Err((ProblemKind::LineTooLong, reason)),
            },
            MemberRole::Metadata if self.metadata.is_none() => match members.read_text(member)? {
                Ok(bytes) => Metadata::parse(bytes).map(|metadata| self.metadata = Some(metadata)),
                Err(reason) => Err((ProblemKind::LineTooLong, reason)),
            },
            MemberRole::Metadata | MemberRole::None => Ok(()),
        };
        if let Err((kind, detail)) = read {
            self.fault.get_or_insert((kind, format!("`{}`: {detail}", excerpt(&member.name))));
        }
        Ok(())
    }

    /// Of two recordings, the one preferred first is read.
    fn add_recording(&mut self, member: &TarMember, scan: &mut ShardScan<'_>) {
        let Some(known) = self.recording.take() else {
            self.recording = Some(member.clone());
            return;
        };
        let (read, unused) = match recording_rank(&member.name) < recording_rank(&known.name) {
            true => (member.clone(), known),
            false => (known, member.clone()),
        };
        let detail = format!("`{}` is not read: `{}` is", excerpt(&unused.name), excerpt(&read.name));
        scan.problem(Some(self.number), ProblemKind::UnusedFile, detail);
        self.recording = Some(read);
    }

    /// Of several texts, the one preferred first that says something. Its words are on one line.
    fn add_text(&mut self, rank: usize, text: &str) {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_better = match &self.text {
            None => true,
            Some(known) => !text.is_empty() && (known.text.is_empty() || rank < known.rank),
        };
        if is_better {
            self.text = Some(TextFile { rank, text });
        }
    }

    /// Whether it has what a row needs.
    pub(super) fn is_row(&self) -> bool {
        let has_text = self.text.is_some() || matches!(&self.metadata, Some(Metadata { text: Ok(Some(_)), .. }));
        self.recording.is_some() && has_text
    }

    /// Adds its row, or says what it lacks. A sample without a recording and a text is nothing of ours.
    pub(super) fn finish(mut self, bytes: &Arc<dyn ReadAt>, scan: &mut ShardScan<'_>) {
        if self.num_members > MAX_MEMBERS {
            let (key, found) = (excerpt(&self.key), self.num_members);
            let detail = format!(
                "`{key}` has {found} members, of which {MAX_MEMBERS} are read: a name ends at its first dot; rename members \
                 that belong to different utterances"
            );
            scan.problem(Some(self.number), ProblemKind::UnusedFile, detail);
        }
        let text = match self.take_text() {
            Ok(text) => text,
            Err((kind, detail)) => return scan.problem(Some(self.number), kind, detail),
        };
        let (recording, text) = match (&self.recording, text) {
            (Some(recording), Some(text)) => (recording, text),
            (Some(_), None) => {
                let detail = format!("`{}` has no text, found {}", excerpt(&self.key), self.found());
                return scan.problem(Some(self.number), ProblemKind::MissingText, detail);
            }
            (None, Some(_)) => {
                let detail = format!("no {}{}, found {}", excerpt(&self.key), endings(), self.found());
                return scan.problem(Some(self.number), ProblemKind::MissingAudio, detail);
            }
            (None, None) => return,
        };
        let row = ShardRow {
            number: self.number,
            id: self.metadata.as_ref().and_then(|metadata| metadata.id.as_deref()).unwrap_or(&self.key),
            text: &text,
            speaker: self.metadata.as_ref().and_then(|metadata| metadata.speaker.as_deref()),
            lang: self.metadata.as_ref().and_then(|metadata| metadata.lang.as_deref()),
            key: &recording.name,
            // A larger member is no member.
            address: Some(ValueAddress { position: recording.offset, extent: recording.num_bytes as u32 }),
            offset_s: None,
            duration_s: self.metadata.as_ref().and_then(|metadata| metadata.duration_s),
        };
        let span = recording.offset..recording.offset + recording.num_bytes;
        scan.row(&row, Some(&|| Ok(RecordingReader::of_piece(Arc::clone(bytes), span.clone()))));
    }

    /// What is said: a text file that says something, else the object, else nothing.
    fn take_text(&mut self) -> Result<Option<String>, RejectedRow> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let file = self.text.take().map(|file| file.text);
        match (file, &mut self.metadata) {
            (Some(text), Some(metadata)) if text.is_empty() => {
                let said = std::mem::replace(&mut metadata.text, Ok(None));
                Ok(said.ok().flatten().or(Some(text)))
            }
            (Some(text), _) => Ok(Some(text)),
            (None, Some(metadata)) => {
                let said = std::mem::replace(&mut metadata.text, Ok(None));
                said.map_err(|(kind, detail)| (kind, format!("`{}`: {detail}", excerpt(&self.key))))
            }
            (None, None) => Ok(None),
        }
    }

    /// Its members, for messages.
    fn found(&self) -> String {
        let names = self.names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        match self.num_members.saturating_sub(self.names.len()) {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }
}

impl MemberRole {
    /// The last part of an extension says what it is: `audio.wav` is a recording. Texts are known by the whole extension.
    fn of(extension: &str) -> MemberRole {
        if recording_rank(extension) < EXTENSIONS.len() {
            return MemberRole::Recording;
        }
        match TEXT_EXTENSIONS.iter().position(|known| *known == extension) {
            Some(rank) => MemberRole::Text { rank },
            None if extension == "json" => MemberRole::Metadata,
            None => MemberRole::None,
        }
    }
}

/// The place of the ending of `name` among those of recordings; past the last for other endings.
fn recording_rank(name: &str) -> usize {
    let ending = name.rsplit('.').next().unwrap_or_default();
    EXTENSIONS.iter().position(|known| ending.eq_ignore_ascii_case(known)).unwrap_or(EXTENSIONS.len())
}
