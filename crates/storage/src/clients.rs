//! The clients of the stores: one per bucket, with the credentials of the environment.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::HttpClient;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::{ObjectStore, RetryConfig};

use crate::error::StorageError;
use crate::location::{ObjectLocation, ObjectUrl, StoreScheme};
use crate::redact::redact;
use crate::retry::denied;
use crate::transport::SharedConnector;

/// The client of one bucket, or of one object over http.
#[derive(Clone)]
pub(crate) struct StoreClient {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// Plain http has no lists.
    pub(crate) lists: Option<Arc<dyn PaginatedListStore>>,
}

/// Clients by bucket, made when they are first needed.
pub(crate) struct StoreClients {
    connector: SharedConnector,
    variables: Vec<(String, String)>,
    by_bucket: Mutex<HashMap<(StoreScheme, Box<str>), StoreClient>>,
}

impl StoreClients {
    /// `variables` are the environment: credentials, regions, endpoints.
    pub(crate) fn new(client: HttpClient, variables: Vec<(String, String)>) -> StoreClients {
        StoreClients { connector: SharedConnector(client), variables, by_bucket: Mutex::default() }
    }

    /// The client for an object. Makes no request. Fails with [`StorageError::Denied`] if the credentials of the
    /// environment cannot be used.
    pub(crate) fn get(&self, location: &ObjectLocation, url: &ObjectUrl) -> Result<StoreClient, StorageError> {
        // The client of an exact URL costs no connection, so none is stored.
        if url.scheme.is_http() {
            return self.make(url).map_err(|error| denied(location, redact(&error.to_string())));
        }
        let mut by_bucket = self.by_bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = (url.scheme, url.authority.clone());
        if let Some(client) = by_bucket.get(&bucket) {
            return Ok(client.clone());
        }
        let client = self.make(url).map_err(|error| denied(location, redact(&error.to_string())))?;
        by_bucket.insert(bucket, client.clone());
        Ok(client)
    }

    fn make(&self, url: &ObjectUrl) -> object_store::Result<StoreClient> {
        match url.scheme {
            StoreScheme::S3 => self.s3(&url.authority),
            StoreScheme::Gs => self.google(&url.authority),
            StoreScheme::Az | StoreScheme::Abfs | StoreScheme::Abfss => self.azure(url),
            StoreScheme::Http | StoreScheme::Https => {
                let builder = HttpBuilder::new().with_url(url.with_secrets()).with_retry(no_retries());
                let store = builder.with_http_connector(self.connector.clone()).build()?;
                Ok(StoreClient { objects: Arc::new(store), lists: None })
            }
        }
    }

    fn s3(&self, bucket: &str) -> object_store::Result<StoreClient> {
        let mut builder = AmazonS3Builder::new();
        for (key, value) in self.configured("AWS_") {
            if let Ok(key) = key.parse() {
                builder = builder.with_config(key, value);
            }
        }
        // Without a signature, public buckets work everywhere. Credentials of the machine itself are only asked for on
        // request: where there are none, each request would wait for a service that is not there.
        let signs = [
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_METADATA_ENDPOINT",
            "AWS_SKIP_SIGNATURE",
        ];
        if !signs.iter().any(|name| self.has(name)) {
            builder = builder.with_skip_signature(true);
        }
        let builder = builder.with_bucket_name(bucket).with_retry(no_retries());
        Ok(with_lists(builder.with_http_connector(self.connector.clone()).build()?))
    }

    fn google(&self, bucket: &str) -> object_store::Result<StoreClient> {
        let mut builder = GoogleCloudStorageBuilder::new();
        for (key, value) in self.configured("GOOGLE_") {
            if let Ok(key) = key.parse() {
                builder = builder.with_config(key, value);
            }
        }
        let signs = [
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_SERVICE_ACCOUNT",
            "GOOGLE_SERVICE_ACCOUNT_PATH",
            "GOOGLE_SERVICE_ACCOUNT_KEY",
            "GOOGLE_SKIP_SIGNATURE",
        ];
        // Where `gcloud auth application-default login` puts credentials.
        let home = self.variables.iter().find(|(name, _)| name == "HOME").map(|(_, home)| Path::new(home));
        let file = home.map(|home| home.join(".config/gcloud/application_default_credentials.json"));
        if !signs.iter().any(|name| self.has(name)) && !file.is_some_and(|file| file.exists()) {
            builder = builder.with_skip_signature(true);
        }
        let builder = builder.with_bucket_name(bucket).with_retry(no_retries());
        Ok(with_lists(builder.with_http_connector(self.connector.clone()).build()?))
    }

    fn azure(&self, url: &ObjectUrl) -> object_store::Result<StoreClient> {
        let mut builder = MicrosoftAzureBuilder::new();
        for (key, value) in self.configured("AZURE_") {
            if let Ok(key) = key.parse() {
                builder = builder.with_config(key, value);
            }
        }
        // Names differ between tools; all that give credentials have one of these words in them.
        let words = ["KEY", "SAS", "TOKEN", "CLI", "MSI", "IDENTITY", "EMULATOR", "SKIP_SIGNATURE"];
        let signs = |name: &str| name.starts_with("AZURE_") && words.iter().any(|word| name.contains(word));
        if !self.variables.iter().any(|(name, value)| signs(name) && !value.is_empty()) {
            builder = builder.with_skip_signature(true);
        }
        builder = match url.scheme {
            StoreScheme::Az => builder.with_container_name(&*url.authority),
            _ => builder.with_url(format!("{}://{}", url.scheme.name(), url.authority)),
        };
        let builder = builder.with_retry(no_retries());
        Ok(with_lists(builder.with_http_connector(self.connector.clone()).build()?))
    }

    /// Variables that begin with `prefix`, in the lower case in which the builders take them.
    fn configured(&self, prefix: &str) -> impl Iterator<Item = (String, &str)> {
        let set = self.variables.iter().filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty());
        set.map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()))
    }

    fn has(&self, name: &str) -> bool {
        self.variables.iter().any(|(other, value)| other == name && !value.is_empty())
    }
}

fn with_lists<S: ObjectStore + PaginatedListStore>(store: S) -> StoreClient {
    let store = Arc::new(store);
    StoreClient { objects: store.clone(), lists: Some(store) }
}

/// Attempts are counted in one place, [`Attempts`](crate::retry::Attempts).
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::transport::Transport;

    fn client(text: &str, variables: &[(&str, &str)]) -> Result<String, StorageError> {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let transport = Transport::connect(Duration::from_secs(1)).unwrap();
        let clients = StoreClients::new(transport, variables.collect());
        let location = ObjectLocation::parse(text).unwrap();
        let client = clients.get(&location, location.url().unwrap())?;
        Ok(format!("{:?}", client.objects))
    }

    #[test]
    fn requests_are_signed_only_with_credentials_in_the_environment() {
        let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "key"), ("AWS_REGION", "eu-west-1")];
        let signed = client("s3://b/k", &keys).unwrap();
        assert!(signed.contains("skip_signature: false") && signed.contains("eu-west-1"), "{signed}");
        for text in ["s3://b/k", "gs://b/k", "abfss://c@account.dfs.core.windows.net/k"] {
            let unsigned = client(text, &[("HOME", "/nonexistent")]).unwrap();
            assert!(unsigned.contains("skip_signature: true"), "{unsigned}");
        }
        let azure = [("AZURE_STORAGE_ACCOUNT_NAME", "a"), ("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=2")];
        assert!(client("az://c/k", &azure).unwrap().contains("skip_signature: false"));
    }

    #[test]
    fn unusable_credentials_are_an_error_that_names_the_variables() {
        let error = client("s3://b/k", &[("AWS_ACCESS_KEY_ID", "id")]).unwrap_err();
        assert!(error.is_exhausted() && error.to_string().contains("AWS_SECRET_ACCESS_KEY"), "{error}");
        let error = client("az://c/k", &[]).unwrap_err();
        assert!(error.to_string().contains("AZURE_STORAGE_ACCOUNT_NAME"), "{error}");
    }

    #[test]
    fn an_endpoint_for_s3_wins_over_the_general_one() {
        let both = [("AWS_ENDPOINT_URL", "http://general"), ("AWS_ENDPOINT_URL_S3", "http://special")];
        let made = client("s3://b/k", &both).unwrap();
        assert!(made.contains("http://special/b") && !made.contains("http://general/b"), "{made}");
    }
}
