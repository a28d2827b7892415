//! What the names of a corpus stand for: lists and folders of this machine, shards, lists in object stores, mixtures.
//!
//! A name is a path, a URL, or a pattern for several (`shard-{000..127}.tar`, `data/*.parquet`). Names that all stand for
//! shards of one kind are one corpus; other names are a corpus each, mixed with equal weights.
//!
//! A folder of this machine is looked at by `format.rs` first. If that finds nothing, and in an object store always, it is the
//! first of these that it fits: Lhotse Shar, NeMo, Lhotse cuts, WebDataset, Parquet, Arrow; in a store also LJSpeech.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tandem_files::read_text;
use tandem_storage::{ObjectLocation, ObjectStamp, ReadAt as _, Storage, StorageError, redact};

use crate::error::CorpusError;
use crate::format::{CorpusLayout, Format};
use crate::lines::{LineReader, ParsedLine};
use crate::ljspeech::LISTS;
use crate::mixture;
use crate::sample::{MAX_SHARDS, MAX_SOURCES, Subset};
use crate::sharded::source::{ColumnNames, ShardContent, ShardSource, SharedList, StampedObject, open_list};

/// A list of a million names.
const MAX_NAMES_BYTES: u64 = 256 << 20;

/// What a name stands for.
#[derive(Debug)]
pub(crate) enum CorpusSource {
    /// Lists and folders of this machine.
    Local { path: PathBuf, layout: CorpusLayout },
    /// Shards of one kind.
    Shards(ShardSet),
    /// Lists whose recordings are files or objects of their own.
    Lists(StoredLists),
    /// Several corpora.
    Mixture { path: PathBuf, sources: Vec<MixedSource> },
}

/// Shards of one kind, in the order of their names.
#[derive(Debug)]
pub(crate) struct ShardSet {
    pub(crate) format: Format,
    pub(crate) shards: Vec<ShardSource>,
    /// Where names of files in tables begin.
    pub(crate) root: ObjectLocation,
    pub(crate) not_read: Vec<String>,
}

/// Lists that are read through storage: of this machine, or in an object store.
#[derive(Debug)]
pub(crate) struct StoredLists {
    pub(crate) format: Format,
    pub(crate) lists: Vec<(StampedObject, Subset)>,
    /// Where names of recordings begin.
    pub(crate) root: ObjectLocation,
    /// The folder of the recordings, for metadata that names them by id: `wavs/`.
    pub(crate) audio: String,
}

/// A corpus of a mixture.
#[derive(Debug)]
pub(crate) struct MixedSource {
    /// What its ids begin with.
    pub(crate) name: String,
    pub(crate) weight: f64,
    /// The language of rows that name none.
    pub(crate) lang: Option<String>,
    pub(crate) source: CorpusSource,
}

/// What is needed to look at names.
pub(crate) struct SourceFinder<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) columns: Arc<ColumnNames>,
    /// The names are those of a mixture: another one is refused, because two that name each other would never end.
    pub(crate) in_mixture: bool,
}

/// What the ending of a name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ending {
    Tar,
    Parquet,
    Arrow,
    Mixture,
    /// A list of names, one per line.
    Names,
    /// A list of utterances, or a folder.
    Other,
}

impl Ending {
    fn of(name: &str) -> Ending {
        let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        match ending.as_deref() {
            Some("tar") => Ending::Tar,
            Some("parquet") => Ending::Parquet,
            Some("arrow") => Ending::Arrow,
            Some("yaml" | "yml") => Ending::Mixture,
            Some("list") => Ending::Names,
            _ => Ending::Other,
        }
    }

    /// Whether a file of this ending holds recordings.
    fn is_container(self) -> bool {
        matches!(self, Ending::Tar | Ending::Parquet | Ending::Arrow)
    }
}

impl SourceFinder<'_> {
    /// What `names` stand for together. `base` is where relative paths begin: the working folder, or that of a mixture.
    pub(crate) fn find(&self, names: &[String], base: &Path) -> Result<CorpusSource, CorpusError> {
        let [name] = names else { return self.find_several(names, base) };
        let rooted = rooted(name, base);
        let is_local = !is_url(&rooted);
        if is_local && (Path::new(&rooted).exists() || !is_pattern(&rooted)) {
            return self.local(Path::new(&rooted));
        }
        let found = self.storage.expand(&rooted).map_err(|error| no_source(&rooted, error))?;
        match found.as_slice() {
            [one] if one.is_remote() && Ending::of(one.name()) == Ending::Other => self.remote(one),
            [one] if !one.is_remote() => self.local(one.path().unwrap_or(Path::new(&rooted))),
            several if several.iter().any(|location| is_mixture(location.name())) => {
                let reason =
                    "expected a mixture on this machine, found one in a store: copy it, and name its sources in full"
                        .to_owned();
                Err(CorpusError::BadSource { name: redact(name), reason })
            }
            several => self.objects(several, name),
        }
    }

    fn inside_mixture(&self) -> SourceFinder<'_> {
        SourceFinder { storage: self.storage, columns: Arc::clone(&self.columns), in_mixture: true }
    }

    /// Several names: shards of one corpus, or a corpus each.
    fn find_several(&self, names: &[String], base: &Path) -> Result<CorpusSource, CorpusError> {
        if names.is_empty() {
            let reason = "expected at least one name of a corpus, found none".to_owned();
            return Err(CorpusError::BadSource { name: String::new(), reason });
        }
        if let Some(found) = self.one_corpus(names, base)? {
            return self.objects(&found, &names[0]);
        }
        if names.len() > MAX_SOURCES {
            let reason = format!("expected at most {MAX_SOURCES} corpora, found {}", names.len());
            return Err(CorpusError::BadSource { name: redact(&names[0]), reason });
        }
        let inside = self.inside_mixture();
        let sources = names.iter().map(|name| {
            let source = inside.find(std::slice::from_ref(name), base)?;
            Ok(MixedSource { name: mixture::short_name(name), weight: 1.0, lang: None, source })
        });
        let sources = sources.collect::<Result<Vec<_>, CorpusError>>()?;
        let path = PathBuf::from(names.iter().map(|name| redact(name)).collect::<Vec<_>>().join(" "));
        Ok(CorpusSource::Mixture { path, sources: mixture::with_unique_names(sources) })
    }

    /// The objects that `names` stand for, if they are shards of one corpus: containers, and for tar archives the manifests
    /// that number them.
    fn one_corpus(&self, names: &[String], base: &Path) -> Result<Option<Vec<ObjectLocation>>, CorpusError> {
        let is_container = |name: &str| Ending::of(name).is_container();
        let has_tar = names.iter().any(|name| Ending::of(name) == Ending::Tar);
        if !names.iter().all(|name| is_container(name) || (has_tar && has_json_ending(name))) {
            return Ok(None);
        }
        let mut found = Vec::new();
        for name in names {
            let rooted = rooted(name, base);
            found.extend(self.storage.expand(&rooted).map_err(|error| no_source(&rooted, error))?);
        }
        // A list that numbers no archives is a corpus of its own beside them.
        for list in found.iter().filter(|location| !is_container(location.name())) {
            let first = self.first_object(&self.stamped(list)?)?;
            if first.get("shard_id").is_none_or(Value::is_null) {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// A folder or file of this machine.
    fn local(&self, path: &Path) -> Result<CorpusSource, CorpusError> {
        let location = ObjectLocation::file(path);
        if path.is_dir() {
            return match CorpusLayout::of(path) {
                Ok(mut layout) => {
                    layout.not_read.extend(shards_beside(path));
                    Ok(CorpusSource::Local { path: path.to_owned(), layout })
                }
                Err(refusal) => match self.folder(&location)? {
                    Some(source) => Ok(source),
                    None => Err(refusal),
                },
            };
        }
        let name = location.name().to_owned();
        if let Some(reason) = compressed_archive(&name) {
            return Err(CorpusError::BadSource { name: path.display().to_string(), reason });
        }
        match Ending::of(&name) {
            _ if !path.exists() && looks_like_url(path) => {
                let reason = "expected a path, or a URL such as s3://bucket/key".to_owned();
                Err(CorpusError::BadSource { name: path.display().to_string(), reason })
            }
            _ if !path.exists() => {
                CorpusLayout::of(path).map(|layout| CorpusSource::Local { path: path.to_owned(), layout })
            }
            Ending::Mixture if self.in_mixture => {
                let reason = "expected a corpus, found another mixture: list its sources here".to_owned();
                Err(CorpusError::BadSource { name: path.display().to_string(), reason })
            }
            Ending::Mixture => mixture::read(path, &self.inside_mixture()),
            Ending::Names => self.names_in(path),
            Ending::Other if !has_json_ending(&name) => {
                CorpusLayout::of(path).map(|layout| CorpusSource::Local { path: path.to_owned(), layout })
            }
            Ending::Other => self.json_list(&location),
            _ => self.objects(&[location], &name),
        }
    }

    /// The names in a list: shards, as CosyVoice lists them.
    fn names_in(&self, path: &Path) -> Result<CorpusSource, CorpusError> {
        let text =
            read_text(path, MAX_NAMES_BYTES).map_err(|source| CorpusError::Read { path: path.to_owned(), source })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        // Tools write paths as they were given to them: from the folder of the list, or from that of the recipe.
        let placed = |line: &str| match is_url(line) || Path::new(line).exists() || !folder.join(line).exists() {
            true => line.to_owned(),
            false => folder.join(line).to_string_lossy().into_owned(),
        };
        let names: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(placed).collect();
        match names.is_empty() || !names.iter().all(|name| Ending::of(name).is_container()) {
            true => {
                let reason = "expected a list of shards (.tar, .parquet or .arrow), one per line".to_owned();
                Err(CorpusError::BadSource { name: path.display().to_string(), reason })
            }
            false => self.find(&names, Path::new("")),
        }
    }

    /// A folder or list in an object store.
    fn remote(&self, location: &ObjectLocation) -> Result<CorpusSource, CorpusError> {
        if has_json_ending(location.name()) {
            return self.json_list(location);
        }
        if let Some(reason) = compressed_archive(location.name()) {
            return Err(CorpusError::BadSource { name: location.to_string(), reason });
        }
        if location.name().ends_with(".csv") {
            return self
                .metadata(&[(self.stamped(location)?, Subset::Undecided)], location.parent())
                .map(CorpusSource::Lists);
        }
        self.folder(location)?.ok_or_else(|| {
            let reason =
                "expected shards (.tar, .parquet, .arrow), cuts.jsonl.gz or metadata.csv in this folder, found \
                          nothing that can be read; a manifest is named in full: s3://bucket/train.jsonl"
                    .to_owned();
            CorpusError::BadSource { name: location.to_string(), reason }
        })
    }

    /// JSON Lines: cuts, a NeMo manifest of shards, or a manifest of files.
    fn json_list(&self, location: &ObjectLocation) -> Result<CorpusSource, CorpusError> {
        let list = self.stamped(location)?;
        let first = self.first_object(&list)?;
        let has = |key: &str| first.get(key).is_some_and(|value| !value.is_null());
        let kind = first.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind.ends_with("Cut") || (has("supervisions") && has("recording")) {
            return Ok(self.lists(Format::LhotseCuts, list));
        }
        if has("shard_id") {
            return self.nemo_beside(list);
        }
        match location.path() {
            Some(path) if !location.name().ends_with(".gz") => {
                CorpusLayout::of(path).map(|layout| CorpusSource::Local { path: path.to_owned(), layout })
            }
            _ => Ok(self.lists(Format::Manifest, list)),
        }
    }

    /// One list whose recordings are named from its folder.
    fn lists(&self, format: Format, list: StampedObject) -> CorpusSource {
        let root = list.location.parent();
        CorpusSource::Lists(StoredLists { format, lists: vec![(list, Subset::Undecided)], root, audio: String::new() })
    }

    /// The first object of a list; null if its first line is none.
    fn first_object(&self, list: &StampedObject) -> Result<Value, CorpusError> {
        let mut lines = LineReader::new(open_list(self.storage, list)?);
        loop {
            match lines.next_line().map_err(|source| CorpusError::of_io(source, &list.location))? {
                Some((_, ParsedLine::Blank)) => {}
                Some((_, ParsedLine::Text(text))) => return Ok(serde_json::from_str(text).unwrap_or(Value::Null)),
                _ => return Ok(Value::Null),
            }
        }
    }

    /// The archives of a NeMo manifest, which are in its folder.
    fn nemo_beside(&self, list: StampedObject) -> Result<CorpusSource, CorpusError> {
        let folder = list.location.parent();
        let name = list.location.to_string();
        let beside = match list.location.path() {
            Some(_) => self.storage.list(&folder)?,
            None => self.storage.list(&folder).unwrap_or_default(),
        };
        let tars: Vec<StampedObject> = beside.into_iter().filter_map(stamped_tar).collect();
        if tars.is_empty() {
            let reason =
                "the manifest has `shard_id`, and no audio_0.tar, audio_1.tar, … is beside it; name them too: \
                          --train-data manifest.json 'audio_{0..7}.tar'"
                    .to_owned();
            return Err(CorpusError::BadSource { name, reason });
        }
        self.nemo(&[list], tars, folder).map(CorpusSource::Shards)
    }

    /// What a folder holds, if it is anything that can be read.
    fn folder(&self, folder: &ObjectLocation) -> Result<Option<CorpusSource>, CorpusError> {
        let files = self.storage.list(folder).map_err(|error| no_source(&folder.to_string(), error))?;
        let files: Vec<StampedObject> =
            files.into_iter().map(|(location, stamp)| StampedObject { location, stamp }).collect();
        if let Some(shar) = self.shar(&files, folder)? {
            return Ok(Some(CorpusSource::Shards(shar)));
        }
        let tars = || files.iter().filter(|file| Ending::of(file.location.name()) == Ending::Tar).cloned().collect();
        let manifests = self.nemo_manifests(&files, folder)?;
        if !manifests.is_empty() {
            return self.nemo(&manifests, tars(), folder.clone()).map(|set| Some(CorpusSource::Shards(set)));
        }
        if let Some(cuts) = files.iter().find(|file| matches!(file.location.name(), "cuts.jsonl.gz" | "cuts.jsonl")) {
            return Ok(Some(self.lists(Format::LhotseCuts, cuts.clone())));
        }
        for (ending, inside) in
            [(Ending::Tar, &["train"][..]), (Ending::Parquet, &["data", "train"]), (Ending::Arrow, &["train"])]
        {
            if let Some(set) = self.containers(&files, ending, folder)? {
                return Ok(Some(CorpusSource::Shards(set)));
            }
            for name in inside {
                let Ok(below) = self.storage.list(&folder.join(name)) else { continue };
                let below: Vec<_> =
                    below.into_iter().map(|(location, stamp)| StampedObject { location, stamp }).collect();
                if let Some(set) = self.containers(&below, ending, &folder.join(name))? {
                    return Ok(Some(CorpusSource::Shards(set)));
                }
            }
        }
        let lists: Vec<(StampedObject, Subset)> = metadata_lists(&files);
        match lists.is_empty() || !folder.is_remote() {
            true => Ok(None),
            false => self.metadata(&lists, folder.clone()).map(|lists| Some(CorpusSource::Lists(lists))),
        }
    }

    /// LJSpeech in an object store.
    fn metadata(&self, lists: &[(StampedObject, Subset)], root: ObjectLocation) -> Result<StoredLists, CorpusError> {
        let has = |name: &str| self.storage.list(&root.join(name)).is_ok_and(|found| !found.is_empty());
        let (format, audio) = match has("wavs") || !has("wav") {
            true => (Format::LjSpeech, "wavs/"),
            false => (Format::Piper, "wav/"),
        };
        Ok(StoredLists { format, lists: lists.to_vec(), root, audio: audio.to_owned() })
    }

    /// Files of one ending, without those of another split.
    fn containers(
        &self,
        files: &[StampedObject],
        ending: Ending,
        root: &ObjectLocation,
    ) -> Result<Option<ShardSet>, CorpusError> {
        let found: Vec<StampedObject> =
            files.iter().filter(|file| Ending::of(file.location.name()) == ending).cloned().collect();
        if found.is_empty() {
            return Ok(None);
        }
        let (read, not_read) = training_split(found);
        self.shard_set(ending, read, root.clone(), not_read).map(Some)
    }

    /// Objects that were named one by one, or by patterns.
    fn objects(&self, locations: &[ObjectLocation], name: &str) -> Result<CorpusSource, CorpusError> {
        let found = self.stamped_all(locations)?;
        let root = found.first().map_or_else(|| ObjectLocation::file("."), |first| first.location.parent());
        if let Some(shar) = self.shar(&found, &root)? {
            return Ok(CorpusSource::Shards(shar));
        }
        let (lists, containers): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|file| Ending::of(file.location.name()) == Ending::Other);
        let ending = containers.first().map_or(Ending::Other, |first| Ending::of(first.location.name()));
        let is_alike = containers.iter().all(|file| Ending::of(file.location.name()) == ending);
        match (is_alike, ending, lists.is_empty()) {
            (true, Ending::Tar, false) => self.nemo(&lists, containers, root).map(CorpusSource::Shards),
            (true, Ending::Tar | Ending::Parquet | Ending::Arrow, true) => {
                self.shard_set(ending, containers, root, Vec::new()).map(CorpusSource::Shards)
            }
            _ => {
                let reason =
                    "expected shards of one kind (.tar, .parquet or .arrow); a mixture of corpora is a corpus.yaml \
                              or several --train-data names that stand for one corpus each"
                        .to_owned();
                Err(CorpusError::BadSource { name: redact(name), reason })
            }
        }
    }

    fn shard_set(
        &self,
        ending: Ending,
        containers: Vec<StampedObject>,
        root: ObjectLocation,
        not_read: Vec<String>,
    ) -> Result<ShardSet, CorpusError> {
        let first = containers.first().filter(|_| ending == Ending::Tar);
        let ending = first.map_or(Ok(ending), |first| self.ending_by_content(first))?;
        let (format, content) = match ending {
            Ending::Parquet => (Format::Parquet, ShardContent::Parquet),
            Ending::Arrow => (Format::Arrow, ShardContent::Arrow),
            _ => (Format::WebDataset, ShardContent::WebDataset),
        };
        let shards = containers.into_iter().map(|container| self.shard(container, content.clone())).collect();
        check_count(ShardSet { format, shards, root, not_read })
    }

    /// What a file with the ending of a tar archive is: CosyVoice calls its Parquet files so.
    fn ending_by_content(&self, file: &StampedObject) -> Result<Ending, CorpusError> {
        let object = self.storage.open(&file.location, Some(&file.stamp))?;
        let mut first = [0; 6];
        let len = object.num_bytes().min(first.len() as u64) as usize;
        let read = object.read_exact_at(0, &mut first[..len]);
        read.map_err(|error| CorpusError::of_io(error, &file.location))?;
        Ok(match &first {
            [b'P', b'A', b'R', b'1', ..] => Ending::Parquet,
            b"ARROW1" => Ending::Arrow,
            _ => Ending::Tar,
        })
    }

    fn shard(&self, container: StampedObject, content: ShardContent) -> ShardSource {
        ShardSource { container, content, columns: Arc::clone(&self.columns), storage: self.storage.clone() }
    }

    /// Manifests of NeMo in a folder: `tarred_audio_manifest.json`, or one for each shard in `sharded_manifests/`.
    fn nemo_manifests(
        &self,
        files: &[StampedObject],
        folder: &ObjectLocation,
    ) -> Result<Vec<StampedObject>, CorpusError> {
        let named = |file: &&StampedObject| file.location.name() == "tarred_audio_manifest.json";
        if let Some(list) = files.iter().find(named) {
            return Ok(vec![list.clone()]);
        }
        if !files.iter().any(|file| Ending::of(file.location.name()) == Ending::Tar) {
            return Ok(Vec::new());
        }
        let inside = match self.storage.list(&folder.join("sharded_manifests")) {
            Ok(inside) => inside,
            Err(StorageError::Missing { .. } | StorageError::Unsupported { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let lists = inside.into_iter().map(|(location, stamp)| StampedObject { location, stamp });
        Ok(lists.filter(|list| has_json_ending(list.location.name())).collect())
    }

    /// One manifest for all archives, or one for each of the same number.
    fn nemo(
        &self,
        lists: &[StampedObject],
        tars: Vec<StampedObject>,
        root: ObjectLocation,
    ) -> Result<ShardSet, CorpusError> {
        let numbers = || tars.iter().filter_map(|tar| number_in(tar.location.name())).collect();
        let archives = (lists.len() == 1).then(numbers);
        let shared = lists.iter().map(|list| Arc::new(SharedList::new(list.clone(), archives.clone())));
        let shared: Vec<Arc<SharedList>> = shared.collect();
        let mut by_number: HashMap<Option<u32>, &Arc<SharedList>> = HashMap::new();
        for list in &shared {
            let number = number_in(list.object.location.name());
            let has_archive = tars.iter().any(|tar| number_in(tar.location.name()) == number);
            let reason = match (by_number.insert(number, list), shared.len() > 1 && !has_archive) {
                (Some(_), _) => "expected one manifest for each number, found two".to_owned(),
                (None, true) => "expected an archive with the number of this manifest, found none".to_owned(),
                (None, false) => continue,
            };
            return Err(CorpusError::BadSource { name: list.object.location.to_string(), reason });
        }
        let mut shards = Vec::with_capacity(tars.len());
        for tar in tars {
            let number = number_in(tar.location.name());
            let content = match shared.as_slice() {
                [only] => ShardContent::Nemo { list: Arc::clone(only), shard: number, reports_list: false },
                _ => match by_number.get(&number) {
                    Some(list) => ShardContent::Nemo { list: Arc::clone(list), shard: None, reports_list: false },
                    None => {
                        let reason = "expected a manifest with the number of this archive, found none".to_owned();
                        return Err(CorpusError::BadSource { name: tar.location.to_string(), reason });
                    }
                },
            };
            shards.push(self.shard(tar, content));
        }
        shards.sort_by_key(|shard| number_in(shard.location().name()));
        // What is wrong with a list is said once, by the first of its archives.
        let mut reported: Vec<*const SharedList> = Vec::new();
        for shard in &mut shards {
            if let ShardContent::Nemo { list, reports_list, .. } = &mut shard.content {
                *reports_list = !reported.contains(&Arc::as_ptr(list));
                reported.push(Arc::as_ptr(list));
            }
        }
        check_count(ShardSet { format: Format::NemoTarred, shards, root, not_read: Vec::new() })
    }

    /// `cuts.000000.jsonl.gz` with `recording.000000.tar`. None if there is no such pair.
    fn shar(&self, files: &[StampedObject], root: &ObjectLocation) -> Result<Option<ShardSet>, CorpusError> {
        let numbered = |prefix: &'static str, ending: fn(&str) -> bool| {
            files.iter().filter_map(move |file| {
                let name = file.location.name();
                let rest = name.strip_prefix(prefix)?;
                let (number, rest) = rest.split_at_checked(rest.find('.')?)?;
                (ending(rest) && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
                    .then(|| (number.to_owned(), file.clone()))
            })
        };
        let mut cuts: HashMap<String, StampedObject> = HashMap::new();
        for (number, list) in numbered("cuts.", |rest| matches!(rest, ".jsonl" | ".jsonl.gz")) {
            let name = list.location.to_string();
            if cuts.insert(number, list).is_some() {
                let reason = "expected one list of cuts for each number, found a plain and a compressed one".to_owned();
                return Err(CorpusError::BadSource { name, reason });
            }
        }
        let mut tars: Vec<(String, StampedObject)> = numbered("recording.", |rest| rest == ".tar").collect();
        if cuts.is_empty() || tars.is_empty() {
            return Ok(None);
        }
        tars.sort_by(|(a, _), (b, _)| a.cmp(b));
        let (num_cuts, num_tars) = (cuts.len(), tars.len());
        let mut shards = Vec::with_capacity(num_tars);
        for (number, tar) in tars {
            if let Some(cuts) = cuts.get(&number) {
                shards.push(self.shard(tar, ShardContent::Shar { cuts: cuts.clone() }));
            }
        }
        if shards.len() != num_tars || shards.len() != num_cuts {
            let reason = format!(
                "expected a recording.N.tar for each cuts.N.jsonl.gz, found {num_tars} and {num_cuts}, of which {} are pairs",
                shards.len()
            );
            return Err(CorpusError::BadSource { name: root.to_string(), reason });
        }
        let not_read = Vec::new();
        check_count(ShardSet { format: Format::LhotseShar, shards, root: root.clone(), not_read }).map(Some)
    }

    fn stamped(&self, location: &ObjectLocation) -> Result<StampedObject, CorpusError> {
        let stamp = self.storage.stamp(location)?;
        Ok(StampedObject { location: location.clone(), stamp })
    }

    /// Stamps of many objects. Those of one folder of a store come from its listing: one request instead of hundreds.
    fn stamped_all(&self, locations: &[ObjectLocation]) -> Result<Vec<StampedObject>, CorpusError> {
        const WORTH_A_LISTING: usize = 4;
        let mut listed: HashMap<ObjectLocation, HashMap<ObjectLocation, ObjectStamp>> = HashMap::new();
        let mut found = Vec::with_capacity(locations.len());
        let mut missing: Vec<&ObjectLocation> = Vec::new();
        for location in locations {
            if location.is_remote() && locations.len() >= WORTH_A_LISTING {
                let folder = location.parent();
                let known = listed.entry(folder.clone()).or_insert_with(|| {
                    // Over plain http there is no listing: each object is asked for.
                    self.storage.list(&folder).unwrap_or_default().into_iter().collect()
                });
                if let Some(stamp) = known.get(location) {
                    found.push(StampedObject { location: location.clone(), stamp: stamp.clone() });
                    continue;
                }
            }
            match self.storage.stamp(location) {
                Ok(stamp) => found.push(StampedObject { location: location.clone(), stamp }),
                Err(StorageError::Missing { .. }) => missing.push(location),
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(first) = missing.first() {
            let (count, total) = (missing.len(), locations.len());
            let reason = match total {
                1 => "expected a file or an object, found nothing".to_owned(),
                _ => format!("{count} of {total} shards are missing; the first of them"),
            };
            return Err(CorpusError::BadSource { name: first.to_string(), reason });
        }
        Ok(found)
    }
}

fn stamped_tar((location, stamp): (ObjectLocation, ObjectStamp)) -> Option<StampedObject> {
    (Ending::of(location.name()) == Ending::Tar).then_some(StampedObject { location, stamp })
}

/// The lists of LJSpeech that are there, by the rule of `ljspeech::lists`.
fn metadata_lists(files: &[StampedObject]) -> Vec<(StampedObject, Subset)> {
    let [train, eval, whole] = LISTS.map(|name| files.iter().find(|file| file.location.name() == name).cloned());
    match (train, eval, whole) {
        (Some(train), Some(eval), _) => vec![(train, Subset::Train), (eval, Subset::Eval)],
        (Some(list), None, _) | (None, _, Some(list)) => vec![(list, Subset::Undecided)],
        (None, Some(eval), None) => vec![(eval, Subset::Eval)],
        (None, None, None) => Vec::new(),
    }
}

/// Where splits are told apart by a word of their names (`train-00000-of-00004.parquet`, `voice-test-…`), those for training, and
/// what is not read. What `datasets` caches beside its files is never read.
fn training_split(files: Vec<StampedObject>) -> (Vec<StampedObject>, Vec<String>) {
    const TRAINING: [&str; 2] = ["train", "training"];
    const OTHERS: [&str; 6] = ["test", "validation", "valid", "val", "dev", "eval"];
    let has_word = |file: &StampedObject, words: &[&str]| {
        let name = file.location.name().to_ascii_lowercase();
        name.split(|c: char| !c.is_ascii_alphabetic()).any(|word| words.contains(&word))
    };
    let is_cached = |file: &StampedObject| file.location.name().starts_with("cache-");
    let has_training = files.iter().any(|file| has_word(file, &TRAINING));
    let is_other = |file: &StampedObject| {
        is_cached(file) || (has_training && has_word(file, &OTHERS) && !has_word(file, &TRAINING))
    };
    let (others, read): (Vec<_>, Vec<_>) = files.into_iter().partition(is_other);
    let not_read = others.iter().map(|file| file.location.name().to_owned()).collect();
    (read, not_read)
}

/// Shards in a folder that is read as something else, in words.
fn shards_beside(folder: &Path) -> Option<String> {
    let entries = std::fs::read_dir(folder).ok()?;
    let is_shard = |name: &str| Ending::of(name).is_container();
    let count = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_shard)).count();
    (count > 0).then(|| format!("{count} .tar, .parquet or .arrow files; to read them, name them"))
}

/// Why an archive cannot be read as it is.
fn compressed_archive(name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    let is_compressed =
        [".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"].iter().any(|ending| name.ends_with(ending));
    is_compressed.then(|| "expected a plain tar archive, found a compressed one: recordings in it cannot be read at any position; unpack it with gunzip or the like".to_owned())
}

/// Whether a slash or a colon of a URL was forgotten.
fn looks_like_url(path: &Path) -> bool {
    let schemes = ["s3:", "gs:", "az:", "abfss:", "http:", "https:"];
    path.to_str().is_some_and(|text| schemes.iter().any(|scheme| text.to_ascii_lowercase().starts_with(scheme)))
}

/// The last number in a file name: 12 in `audio_12.tar`.
fn number_in(name: &str) -> Option<u32> {
    let stem = name.split('.').next().unwrap_or(name);
    let end = stem.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = stem[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    stem.get(start..end)?.parse().ok()
}

fn check_count(set: ShardSet) -> Result<ShardSet, CorpusError> {
    match set.shards.len() < MAX_SHARDS {
        true => Ok(set),
        false => {
            let reason = format!("expected fewer than {MAX_SHARDS} shards, found {}", set.shards.len());
            Err(CorpusError::BadSource { name: set.root.to_string(), reason })
        }
    }
}

fn no_source(name: &str, error: StorageError) -> CorpusError {
    match error {
        StorageError::NoMatch { .. } => {
            let reason = "expected at least one file or object, found none".to_owned();
            CorpusError::BadSource { name: redact(name), reason }
        }
        StorageError::Missing { .. } => CorpusError::NotADataset {
            path: PathBuf::from(redact(name)),
            found: "nothing".to_owned(),
            missing: Vec::new(),
            inside: None,
        },
        other => other.into(),
    }
}

/// `name` as seen from `base`, if it is a relative path.
fn rooted(name: &str, base: &Path) -> String {
    let is_relative = !is_url(name) && Path::new(name).is_relative() && !base.as_os_str().is_empty();
    match (is_relative, base.to_str()) {
        (true, Some(base)) if is_pattern(name) => {
            Path::new(&literal(base)).join(name).to_str().unwrap_or(name).to_owned()
        }
        (true, Some(base)) => Path::new(base).join(name).to_str().unwrap_or(name).to_owned(),
        _ => name.to_owned(),
    }
}

/// A folder's name in a pattern, where its characters stand for themselves.
fn literal(folder: &str) -> String {
    let mut escaped = String::with_capacity(folder.len());
    for c in folder.chars() {
        match c {
            '*' | '?' | '[' => escaped.extend(['[', c, ']']),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// Whether a name is that of a mixture.
pub(crate) fn is_mixture(name: &str) -> bool {
    Ending::of(name) == Ending::Mixture
}

pub(crate) fn is_url(name: &str) -> bool {
    name.split_once("://")
        .is_some_and(|(scheme, _)| !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric()))
}

fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '[', '{'])
}

fn has_json_ending(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.ends_with(".jsonl") || name.ends_with(".json") || name.ends_with(".ndjson")
}

#[cfg(test)]
mod tests;
