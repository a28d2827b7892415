//! The config file: parses YAML into [`Settings`]. Every error names its line.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};
use tandem_files::open_regular;

use crate::retired::Retired;
use crate::setting::{Id, SECTIONS, SETTINGS, Setting};
use crate::settings::{Origin, SettingError, Settings};
use tandem_text::nearest;

/// An unusable config file. All of these are usage errors: exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the config file ({why}): {file}")]
    Unreadable {
        /// The file, as the user named it.
        file: String,
        /// The system's error.
        why: String,
    },
    /// The file is not text.
    #[error("the config file is not UTF-8 text (byte {at}): {file}")]
    NotText {
        /// The file, as the user named it.
        file: String,
        /// Offset of the first invalid byte.
        at: usize,
    },
    /// The file is not a Tandem config: too long, too deep, or more than one document.
    #[error("expected {expected} in the config file, found {found}: {file}")]
    NotConfig {
        /// The file, as the user named it.
        file: String,
        /// Expected content.
        expected: &'static str,
        /// Found content.
        found: String,
    },
    /// The text is not YAML.
    #[error("{file}:{line}: not YAML: {what}")]
    NotYaml {
        /// The file, as the user named it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The parser's error.
        what: String,
    },
    /// A node of the wrong type: a list instead of a section or a value.
    #[error("{file}:{line}: {name}: expected {expected}, found {found}")]
    WrongType {
        /// The file, as the user named it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The section or key.
        name: String,
        /// The valid types or values.
        expected: String,
        /// The type found.
        found: &'static str,
    },
    /// A key at the top level.
    #[error("{file}:{line}: `{name}` must be inside a section: data, model or training")]
    OutsideSection {
        /// The file, as the user named it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The key.
        name: String,
    },
    /// Unknown section.
    #[error("{file}:{line}: unknown section `{name}`; did you mean `{nearest}`?")]
    UnknownSection {
        /// The file, as the user named it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The unknown name.
        name: String,
        /// The closest known section.
        nearest: &'static str,
    },
    /// Unknown key.
    #[error("{file}:{line}: unknown key `{name}`; did you mean `{nearest}`?")]
    UnknownKey {
        /// The file, as the user named it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The unknown key, with its section.
        name: String,
        /// The closest known key, with its section.
        nearest: String,
    },
    /// A key is set twice, perhaps under two of its names.
    #[error("{file}:{line}: `{name}` is set twice{}", first.map(|n| format!(", first on line {n}")).unwrap_or_default())]
    Twice {
        /// The file, as the user named it.
        file: String,
        /// The line of the second setting, from 1.
        line: usize,
        /// The key as it is written the second time.
        name: String,
        /// The line of the first setting, if known.
        first: Option<usize>,
    },
    /// The key is known, its value is not valid.
    #[error(transparent)]
    InvalidValue(#[from] SettingError),
    /// More than one of these, each with its line.
    #[error("{} problems in the config file{}", errors.len(), list(errors))]
    Several {
        /// All of them, in the order of the file.
        errors: Vec<ConfigError>,
    },
}

fn list(errors: &[ConfigError]) -> String {
    errors.iter().map(|error| format!("\n   {error}")).collect()
}

/// Sections of older Python trainers. Every setting has one name, so a key is known wherever it stands.
const OLD_SECTIONS: [&str; 8] = ["audio", "dataset", "gpu", "hardware", "optimizer", "performance", "train", "trainer"];

/// A complete config has about 8 KB with its comments. The limit stops the parser from reading a large file that was named by
/// mistake.
const MAX_BYTES: usize = 16 << 10;
/// The same with the items of lists: data may have 4096 names.
const MAX_BYTES_WITH_ITEMS: usize = 512 << 10;
/// A config nests three levels deep, and indentation alone reaches 1000 levels in 512 KB. Nested lists in brackets would reach
/// many thousands, and dropping such a tree overflows the stack.
const MAX_OPENERS: usize = 256;

/// Reads the config file at `path` into `settings`. Returns warnings about retired keys.
pub fn load(path: &Path, settings: &mut Settings) -> Result<Vec<String>, ConfigError> {
    let file = path.display().to_string();
    let unreadable = |why: std::io::Error| ConfigError::Unreadable { file: file.clone(), why: why.to_string() };
    let mut bytes = Vec::new();
    // One byte more than the limit distinguishes a file that is too long from one that just fits.
    let opened = open_regular(path).map_err(unreadable)?;
    opened.take(MAX_BYTES_WITH_ITEMS as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    check_length(bytes.len(), MAX_BYTES_WITH_ITEMS, &file)?;
    match std::str::from_utf8(&bytes) {
        Ok(text) => parse(text, &file, settings),
        Err(error) => Err(ConfigError::NotText { at: error.valid_up_to(), file }),
    }
}

/// Reads the config `text` into `settings`; messages name it `file`. Returns warnings as [`load`] does.
pub fn parse(text: &str, file: &str, settings: &mut Settings) -> Result<Vec<String>, ConfigError> {
    check_length(text.len(), MAX_BYTES_WITH_ITEMS, file)?;
    let is_item = |line: &&str| line.trim_start().starts_with("- ");
    let items: usize = text.split_inclusive('\n').filter(is_item).map(str::len).sum();
    check_length(text.len() - items, MAX_BYTES, file)?;
    check_depth(text, file)?;
    let documents = MarkedYaml::load_from_str(text).map_err(|error| not_yaml(text, file, &error))?;
    let mut reader = Reader { file, settings, lines: BTreeMap::new(), warnings: Vec::new(), errors: Vec::new() };
    match documents.as_slice() {
        [] => {}
        [document] => reader.document(document),
        more => {
            let found = format!("{} documents", more.len());
            return Err(ConfigError::NotConfig { file: file.to_owned(), expected: "one YAML document", found });
        }
    }
    let Reader { warnings, mut errors, .. } = reader;
    errors.sort_by_key(|(line, _)| *line);
    let mut errors: Vec<ConfigError> = errors.into_iter().map(|(_, error)| error).collect();
    match errors.len() {
        0 => Ok(warnings),
        1 => Err(errors.remove(0)),
        _ => Err(ConfigError::Several { errors }),
    }
}

fn check_length(bytes: usize, max_bytes: usize, file: &str) -> Result<(), ConfigError> {
    if bytes <= max_bytes {
        return Ok(());
    }
    let (expected, found) = ("a few KB of YAML", format!("more than {max_bytes} bytes"));
    Err(ConfigError::NotConfig { file: file.to_owned(), expected, found })
}

fn check_depth(text: &str, file: &str) -> Result<(), ConfigError> {
    let written = text.lines().map(str::trim_start).filter(|line| !line.starts_with('#'));
    let openers: usize = written.map(num_openers).sum();
    if openers <= MAX_OPENERS {
        return Ok(());
    }
    let (expected, found) = ("sections of keys and values", format!("{openers} lists and mappings"));
    Err(ConfigError::NotConfig { file: file.to_owned(), expected, found })
}

/// What may open a list or a mapping in a line. The first dash of a line needs a deeper line to nest, and a bracket inside a
/// word is part of it (`shard-{0..9}.tar`) or an error.
fn num_openers(line: &str) -> usize {
    let line = line.strip_prefix("- ").unwrap_or(line);
    let dashes: usize = ["- ", "? "].iter().map(|opener| line.matches(opener).count()).sum();
    let begins = |before: char| before.is_whitespace() || "[{,:?".contains(before);
    let before = |at: usize| line[..at].chars().next_back();
    let brackets = line.match_indices(['[', '{']).filter(|(at, _)| before(*at).is_none_or(begins)).count();
    dashes + brackets
}

struct Reader<'a> {
    file: &'a str,
    settings: &'a mut Settings,
    /// The line of each setting, under any of its names.
    lines: BTreeMap<Id, usize>,
    warnings: Vec<String>,
    /// Everything that is wrong, with its line: one run reports all of it.
    errors: Vec<(usize, ConfigError)>,
}

impl Reader<'_> {
    fn document(&mut self, document: &MarkedYaml<'_>) {
        for (name, keys, line) in self.entries("the file", document, "sections") {
            let is_section = matches!(keys.data, YamlData::Mapping(_)) || Setting::of_key(&name).is_none();
            match known_section(&name).filter(|_| is_section) {
                Some(section) => {
                    for (key, value, line) in self.entries(section, keys, "keys and values") {
                        let read = self.key(section, &key, value, line);
                        self.errors.extend(read.err().map(|error| (line, error)));
                    }
                }
                None => {
                    let error = self.unknown_section(name, line);
                    self.errors.push((line, error));
                }
            }
        }
    }

    fn key(&mut self, section: &str, key: &str, value: &MarkedYaml<'_>, line: usize) -> Result<(), ConfigError> {
        if let Some(retired) = Retired::of_key(section, key) {
            let instead = retired.instead_in_config();
            self.warnings.push(format!("{}:{line}: `{key}` has no effect: {instead}", self.file));
            return Ok(());
        }
        let name = format!("{section}.{key}");
        let Some(setting) = Setting::of_key(key) else { return Err(self.unknown_key(name, key, line)) };
        let file = self.file.to_owned();
        if let Some(first) = self.lines.insert(setting.id, line) {
            return Err(ConfigError::Twice { file, line, name, first: Some(first) });
        }
        if let (YamlData::Sequence(items), true) = (&value.data, setting.takes_several()) {
            return self.list(&name, setting, items, line);
        }
        let Some(text) = self.scalar(&name, setting, value)? else { return Ok(()) };
        Ok(self.settings.put(setting, &text, Origin::Config { file, line })?)
    }

    /// A list of names. An error is at the line of its item.
    fn list(
        &mut self,
        name: &str,
        setting: &Setting,
        items: &[MarkedYaml<'_>],
        line: usize,
    ) -> Result<(), ConfigError> {
        let mut names = Vec::new();
        for item in items {
            let text = scalar_text(item).ok_or_else(|| self.wrong_type(item, name, "a name"))?;
            let origin = Origin::Config { file: self.file.to_owned(), line: item.span.start.line() };
            Settings::new().put(setting, &text, origin)?;
            names.push(text);
        }
        Ok(self.settings.put_all(setting, &names, Origin::Config { file: self.file.to_owned(), line })?)
    }

    fn unknown_section(&self, name: String, line: usize) -> ConfigError {
        let file = self.file.to_owned();
        if Setting::of_key(&name).is_some() || SECTIONS.iter().any(|section| Retired::of_key(section, &name).is_some())
        {
            return ConfigError::OutsideSection { file, line, name };
        }
        let nearest = nearest(&name, SECTIONS).unwrap_or_default();
        ConfigError::UnknownSection { file, line, name, nearest }
    }

    /// The entries of a mapping, each with its line. An empty node has no entries, and neither has one of the wrong type.
    fn entries<'y, 'i>(
        &mut self,
        name: &str,
        node: &'y MarkedYaml<'i>,
        expected: &str,
    ) -> Vec<(String, &'y MarkedYaml<'i>, usize)> {
        let map = match &node.data {
            YamlData::Mapping(map) => map,
            YamlData::Value(Scalar::Null) | YamlData::BadValue => return Vec::new(),
            _ => {
                let error = self.wrong_type(node, name, expected);
                self.errors.push((node.span.start.line(), error));
                return Vec::new();
            }
        };
        let mut entries = Vec::new();
        for (key, value) in map {
            match scalar_text(key) {
                Some(name) => entries.push((name, value, key.span.start.line())),
                None => {
                    let error = self.wrong_type(key, "a key", "a name");
                    self.errors.push((key.span.start.line(), error));
                }
            }
        }
        entries
    }

    /// The text of a value; `None` for `null`, which keeps the default.
    fn scalar(&self, name: &str, setting: &Setting, value: &MarkedYaml<'_>) -> Result<Option<String>, ConfigError> {
        match &value.data {
            YamlData::Value(Scalar::Null) => Ok(None),
            _ => scalar_text(value).map(Some).ok_or_else(|| self.wrong_type(value, name, &setting.expected())),
        }
    }

    fn wrong_type(&self, node: &MarkedYaml<'_>, name: &str, expected: &str) -> ConfigError {
        let found = match &node.data {
            YamlData::Sequence(_) => "a list",
            YamlData::Mapping(_) => "a mapping",
            YamlData::Value(Scalar::Null) => "nothing",
            YamlData::Value(_) => "a single value",
            _ => "an unsupported value",
        };
        let (file, line) = (self.file.to_owned(), node.span.start.line());
        ConfigError::WrongType { file, line, name: name.to_owned(), expected: expected.to_owned(), found }
    }

    fn unknown_key(&self, name: String, key: &str, line: usize) -> ConfigError {
        let close = nearest(key, SETTINGS.iter().map(|s| s.key)).unwrap_or_default();
        let section = Setting::of_key(close).map(|s| s.section).unwrap_or_default();
        ConfigError::UnknownKey { file: self.file.to_owned(), line, name, nearest: format!("{section}.{close}") }
    }
}

fn known_section(name: &str) -> Option<&'static str> {
    SECTIONS.into_iter().chain(OLD_SECTIONS).find(|section| *section == name)
}

fn scalar_text(node: &MarkedYaml<'_>) -> Option<String> {
    match &node.data {
        YamlData::Value(Scalar::String(text)) => Some(text.to_string()),
        YamlData::Value(Scalar::Integer(n)) => Some(n.to_string()),
        YamlData::Value(Scalar::Boolean(on)) => Some(on.to_string()),
        // `{:?}` keeps the `.0` of `16.0`, which is not a whole number.
        YamlData::Value(Scalar::FloatingPoint(x)) => Some(format!("{:?}", x.into_inner())),
        _ => None,
    }
}

fn not_yaml(text: &str, file: &str, error: &saphyr::ScanError) -> ConfigError {
    let (file, line) = (file.to_owned(), error.marker().line());
    if error.info().contains("duplicated key") {
        let written = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
        let name = written.split(':').next().unwrap_or_default().trim().to_owned();
        return ConfigError::Twice { file, line, name, first: None };
    }
    ConfigError::NotYaml { file, line, what: error.info().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Settings, Vec<String>), String> {
        let mut settings = Settings::new();
        parse(text, "c.yaml", &mut settings).map(|warnings| (settings, warnings)).map_err(|e| e.to_string())
    }

    fn check(text: &str, message: &str) {
        assert_eq!(read(text).unwrap_err(), message, "{text}");
    }

    #[test]
    fn keys_of_all_kinds() {
        let text = "data:\n  data_gpu: 0\n  pipeline_buffer_size: 20\n  data_gpu_memory: auto:0.40\n  \
                    share_gpu: true\n  model_start_delay: 1\nmodel:\n  model_size: nano\ntraining:\n  batch_size: '8'\n";
        let (settings, warnings) = read(text).unwrap();
        assert_eq!(
            settings.to_string(),
            "--batch-size 8 --model-size nano --buffer-size 20 --data-gpu 0 --share-gpu --data-gpu-memory auto:0.4 \
             --model-start-delay 1.0"
        );
        assert!(warnings.is_empty());
        let origin = &settings.given(Id::BufferSize).unwrap().origin;
        assert_eq!(*origin, Origin::Config { file: "c.yaml".to_owned(), line: 3 });
    }

    #[test]
    fn data_is_one_name_or_a_list() {
        let check = |text: &str, expected: &[&str]| {
            assert_eq!(read(text).unwrap().0.texts(Id::TrainData), expected, "{text}");
        };
        check("data:\n  train_data: voice\n", &["voice"]);
        check("data:\n  train_data: [a.tar, 's3://b/{0..9}.tar', 7]\n", &["a.tar", "s3://b/{0..9}.tar", "7"]);
        check("data:\n  dataset_path:\n    - a b\n    - shard-{000..127}.tar\n", &["a b", "shard-{000..127}.tar"]);
        let (settings, _) = read("data:\n  train_data: t\n  val_data:\n  - v\n  - w\n").unwrap();
        assert_eq!(settings.to_string(), "--train-data t --val-data v w");
        let origin = &settings.given(Id::ValData).unwrap().origin;
        assert_eq!(*origin, Origin::Config { file: "c.yaml".to_owned(), line: 3 });
    }

    #[test]
    fn a_wrong_list_of_data_names_its_line() {
        check("data:\n  train_data:\n    - a\n    - [b]\n", "c.yaml:4: data.train_data: expected a name, found a list");
        check(
            "data:\n  train_data:\n    - a\n    - C:\\voice\n",
            "c.yaml:4: data.train_data: expected a path of this system, found `C:\\voice`; for example \
             train_data: /mnt/c/voice",
        );
        check(
            "data:\n  train_data: []\n",
            "c.yaml:2: data.train_data: expected 1 to 4096 names, of which each may be a pattern in quotes, found `0 names`; \
             for example train_data: 'data/*.tar'",
        );
        check(
            "data:\n  train_data: {a: b}\n",
            "c.yaml:2: data.train_data: expected a path of this system, a pattern, a URL, or a list of them, found a mapping",
        );
        check("data:\n  lexicon: [a]\n", "c.yaml:2: data.lexicon: expected a path of this system, found a list");
    }

    #[test]
    fn a_list_of_thousands_of_names_is_read() {
        let names: Vec<String> =
            (0..4096).map(|n| format!("s3://bucket/some/folder/part-{n:05}-{{000..127}}.tar")).collect();
        let block: String = names.iter().map(|name| format!("    - {name}\n")).collect();
        assert_eq!(read(&format!("data:\n  train_data:\n{block}")).unwrap().0.texts(Id::TrainData), names);
        let flow = serde_json::json!(names[..200]).to_string();
        assert_eq!(read(&format!("data:\n  train_data: {flow}\n")).unwrap().0.texts(Id::TrainData), names[..200]);
    }

    #[test]
    fn an_empty_config_sets_nothing() {
        for text in ["", "# only a comment\n", "data:\n", "---\n", "~", "data: {}\nmodel:\n", "data:\n  gpu: null\n"] {
            assert_eq!(read(text).unwrap().0, Settings::new(), "{text:?}");
        }
    }

    #[test]
    fn aliases_work_and_retired_keys_warn() {
        let (settings, warnings) =
            read("data:\n  buffer_size: 9\n  use_tf_native_loading: true\n  data_gpu_memory_limit: 64\n").unwrap();
        assert_eq!(settings.to_string(), "--buffer-size 9 --data-gpu-memory 64");
        let warning = "c.yaml:3: `use_tf_native_loading` has no effect: \
                       decoding always runs on native threads (data.num_workers)";
        assert_eq!(warnings, [warning]);
    }

    #[test]
    fn keys_of_older_trainers_are_known_where_they_stood() {
        let text = "data:\n  dataset_path: voice\n  language: fa\n  batch_size: 8\n  mixed_precision: false\n  \
                    num_workers: 4\n  text_cleaners: [english_cleaners]\n  sample_rate: 22050\n  train_subset_size: 100\n\
                    model:\n  max_text_length: 500\n  decoder_dim: 1536\ntraining:\n  learning_rate: 5.0e-5\n  \
                    epochs: 10\n  scheduler_params: {}\n  save_step: 500\ngpu:\n  data_gpu: 0\n  model_gpu: 1\n  \
                    gpu_memory_growth: true\ntrainer:\n  output_path: runs\n";
        let (settings, warnings) = read(text).unwrap();
        assert_eq!(
            settings.to_string(),
            "--train-data voice --lang fa --checkpoint-dir runs --epochs 10 --checkpoint-every 500 --lr 5e-5 \
             --batch-size 8 --no-mixed-precision --num-workers 4 --data-gpu 0 --model-gpu 1"
        );
        let lines: Vec<&str> = warnings.iter().map(|warning| warning.split(' ').next().unwrap()).collect();
        assert_eq!(
            lines,
            ["c.yaml:7:", "c.yaml:8:", "c.yaml:9:", "c.yaml:11:", "c.yaml:12:", "c.yaml:16:", "c.yaml:21:"]
        );
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        check(
            "data:\n  num_worker: 2\n  cashe: none\ntraning:\n  seed: 1\nmodel:\n  model_size: huge\n  [a]: 1\n\
             training: 5\nseed: 1\n",
            "7 problems in the config file\n   \
             c.yaml:2: unknown key `data.num_worker`; did you mean `data.num_workers`?\n   \
             c.yaml:3: unknown key `data.cashe`; did you mean `data.cache`?\n   \
             c.yaml:4: unknown section `traning`; did you mean `training`?\n   \
             c.yaml:7: model.model_size: expected one of nano, tiny, small, normal, big, found `huge`; \
             for example model_size: big\n   \
             c.yaml:8: a key: expected a name, found a list\n   \
             c.yaml:9: training: expected keys and values, found a single value\n   \
             c.yaml:10: `seed` must be inside a section: data, model or training",
        );
    }

    #[test]
    fn every_error_names_its_line() {
        check(
            "training:\n  batchsize: 8\n",
            "c.yaml:2: unknown key `training.batchsize`; did you mean `training.batch_size`?",
        );
        check("\ntrainig:\n  seed: 1\n", "c.yaml:2: unknown section `trainig`; did you mean `training`?");
        check("seed: 1\n", "c.yaml:1: `seed` must be inside a section: data, model or training");
        check("data: 5\n", "c.yaml:1: data: expected keys and values, found a single value");
        check("- a\n- b\n", "c.yaml:1: the file: expected sections, found a list");
        check(
            "data:\n  gpu: [0, 1]\n",
            "c.yaml:2: data.gpu: expected a GPU number from 0 to 1023, or a UUID or the start of one (`GPU-8f2d`), found a list",
        );
        check("data:\n  gpu: 0\n  gpu: 1\n", "c.yaml:3: `gpu` is set twice");
        check(
            "data:\n  buffer_size: 4\n  pipeline_buffer_size: 5\n",
            "c.yaml:3: `data.pipeline_buffer_size` is set twice, first on line 2",
        );
        check(
            "training:\n  batch_size: 16.0\n",
            "c.yaml:2: training.batch_size: expected a whole number from 1 to 65536, found `16.0`; \
             for example batch_size: 16",
        );
        check("a: b\n---\nc: d\n", "expected one YAML document in the config file, found 2 documents: c.yaml");
    }

    #[test]
    fn an_error_about_yaml_syntax_names_a_line() {
        for text in ["data: [1, 2\n", "data:\n\t- x\n", "\"open", "a: b: c\n", "&a [*b]"] {
            let message = read(text).unwrap_err();
            assert!(message.starts_with("c.yaml:"), "{text:?} {message}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_crash() {
        let units = [
            "- ", "-\t", "[", "{a: ", "? ", "?\t", "&a ", "!!seq ", "-[", "a{", "[a,", "\"a\"[", "'a'{", "[a: ",
            "-\n[", "x:[", "*[", "[&a [", "[!!seq [", "\n- [",
        ];
        for unit in units {
            let text = unit.repeat(MAX_BYTES / unit.len());
            assert!(read(&text).is_err(), "{unit:?}");
            // The item of a list may be long.
            let item = unit.replace('\n', " ").repeat(MAX_BYTES_WITH_ITEMS / unit.len() - 1);
            assert!(read(&format!("- {item}")).is_err(), "- {unit:?}");
            assert!(read(&format!("[{text}")).is_err(), "[{unit:?}");
            assert!(read(&format!("{{a: {text}")).is_err(), "{{{unit:?}");
        }
        // Indentation has as many levels as its bytes allow.
        for (opener, max_bytes) in [("a:", MAX_BYTES), ("-", MAX_BYTES), ("?", MAX_BYTES), ("- ", MAX_BYTES_WITH_ITEMS)]
        {
            let mut text = String::new();
            for level in 0.. {
                let line = format!("{:level$}{opener}\n", "");
                if text.len() + line.len() > max_bytes {
                    break;
                }
                text += &line;
            }
            assert!(text.len() > max_bytes - 2000 && read(&text).is_err(), "{opener}");
        }
    }

    #[test]
    fn files_that_are_not_a_config() {
        let dir = std::env::temp_dir().join(format!("tandem-plan-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let at = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let error = |path: &Path| load(path, &mut Settings::new()).unwrap_err().to_string();
        assert!(error(&dir.join("absent.yaml")).contains("cannot read the config file"));
        assert!(error(&dir).contains("cannot read the config file"));
        assert!(error(&at("bytes.yaml", b"data:\n\xff")).contains("byte 6"));
        assert!(error(&at("huge.yaml", &vec![b'#'; 1 << 20])).contains("more than 524288 bytes"));
        assert!(load(&at("good.yaml", b"training: {seed: 3}"), &mut Settings::new()).unwrap().is_empty());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
