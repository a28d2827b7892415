//! When to ask a store again, and when to give up.

use std::error::Error;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use crate::error::StorageError;
use crate::location::ObjectLocation;
use crate::redact::redact;
use crate::transport::RefusedAnswer;

/// How patient storage is with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageSettings {
    /// Requests for the same bytes, at most; 8. At least one is made.
    pub max_attempts: u32,
    /// The wait after the first failure; 100 ms. Each wait is twice the one before, less a random part of up to half.
    pub first_wait: Duration,
    /// No wait is longer; 10 s.
    pub max_wait: Duration,
    /// A request that gives no byte for so long has failed; 30 s.
    pub request_timeout: Duration,
}

impl Default for StorageSettings {
    fn default() -> StorageSettings {
        StorageSettings {
            max_attempts: 8,
            first_wait: Duration::from_millis(100),
            max_wait: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
        }
    }
}

/// What a failed attempt means.
pub(crate) enum AttemptError {
    /// Asking again gives the same.
    Final(StorageError),
    /// Asking again may help: what was wrong.
    Again(String),
}

impl From<StorageError> for AttemptError {
    fn from(error: StorageError) -> AttemptError {
        AttemptError::Final(error)
    }
}

impl AttemptError {
    /// What an error of the client means for the request of `location`.
    pub(crate) fn of(error: object_store::Error, location: &ObjectLocation) -> AttemptError {
        let place = location.to_string();
        let reason = redact(&error.to_string());
        AttemptError::Final(match error {
            object_store::Error::NotFound { .. } => StorageError::Missing { location: place },
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                denied(location, reason)
            }
            object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => {
                StorageError::Changed { location: place, expected: "the object seen before".into(), found: reason }
            }
            object_store::Error::InvalidPath { .. } => StorageError::BadLocation { text: place, reason },
            object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
                StorageError::Unsupported { location: place, reason }
            }
            error => match refused(&error) {
                Some(refused) => StorageError::Unsupported { location: place, reason: redact(&refused.to_string()) },
                None => return AttemptError::Again(reason),
            },
        })
    }
}

/// A store that wants other credentials.
pub(crate) fn denied(location: &ObjectLocation, reason: String) -> StorageError {
    let variables = location.url().map_or("none", |url| url.scheme.variables());
    let reason = format!("{reason} (environment variables that are read: {variables})");
    StorageError::Denied { location: location.to_string(), reason, by_service: true }
}

/// The answer that a client's error is about, if it is one that asking again does not change.
pub(crate) fn refused<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a RefusedAnswer> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(answer) = error.downcast_ref() {
            return Some(answer);
        }
        cause = error.source();
    }
    None
}

/// The attempts at one request.
pub(crate) struct Attempts<'a> {
    settings: StorageSettings,
    location: &'a ObjectLocation,
    made: u32,
    wait: Duration,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(settings: StorageSettings, location: &'a ObjectLocation) -> Attempts<'a> {
        Attempts { settings, location, made: 0, wait: settings.first_wait }
    }

    /// Waits before the next attempt. Fails if there is none: with the error itself, or with
    /// [`StorageError::Unreachable`] after the last attempt.
    pub(crate) async fn after(&mut self, error: AttemptError) -> Result<(), StorageError> {
        let last = match error {
            AttemptError::Final(error) => return Err(error),
            AttemptError::Again(last) => last,
        };
        self.made += 1;
        if self.made >= self.settings.max_attempts {
            return Err(StorageError::Unreachable { location: self.location.to_string(), attempts: self.made, last });
        }
        tokio::time::sleep(jittered(self.wait.min(self.settings.max_wait), random_fraction())).await;
        self.wait = self.wait.saturating_mul(2).min(self.settings.max_wait);
        Ok(())
    }
}

/// Half of `wait` and a part of the other half, so that many requests that failed together do not return together.
fn jittered(wait: Duration, fraction: f64) -> Duration {
    wait.mul_f64(0.5 + 0.5 * fraction.clamp(0.0, 1.0))
}

/// Between 0 and 1. Decides waits and nothing else, so it needs no seed.
fn random_fraction() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_lie_between_half_and_whole() {
        let wait = Duration::from_millis(100);
        assert_eq!((jittered(wait, 0.0), jittered(wait, 1.0)), (wait / 2, wait));
        let drawn: Vec<f64> = (0..20).map(|_| random_fraction()).collect();
        assert!(drawn.iter().all(|fraction| (0.0..=1.0).contains(fraction)));
        assert!(drawn.iter().any(|fraction| *fraction != drawn[0]), "{drawn:?}");
    }

    #[test]
    fn an_error_of_a_client_is_final_only_if_the_object_is_meant() {
        let location = ObjectLocation::parse("s3://b/k").unwrap();
        let source = || Box::new(std::io::Error::other("GET https://h/k?sig=secret"));
        let error = object_store::Error::PermissionDenied { path: "k".into(), source: source() };
        let AttemptError::Final(denied) = AttemptError::of(error, &location) else { panic!("expected a final error") };
        let text = denied.to_string();
        assert!(text.contains("AWS_ACCESS_KEY_ID") && !text.contains("secret"), "{text}");
        let error = object_store::Error::Generic { store: "S3", source: source() };
        assert!(matches!(AttemptError::of(error, &location), AttemptError::Again(text) if !text.contains("secret")));
    }
}
