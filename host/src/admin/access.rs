//! Who may read what: bearer tokens by TokenReview, paths by SubjectAccessReview, as upstream delegates them.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::clock::Instant;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::ttl_cache::{Digest, TtlCache};
use crate::clock;
use crate::config::AccessConfig;

/// Upstream's deadline for a review.
const REVIEW_DEADLINE: Duration = Duration::from_secs(10);
/// A flood of made-up tokens must not become a flood on the API server.
const REVIEWS_IN_FLIGHT: usize = 8;
const REMEMBERED: usize = 1024;
/// Longer than any token that the API server issues.
const TOKEN_LIMIT: usize = 16 * 1024;

/// Clients for reviews; without one, what needs it is forbidden.
#[derive(Clone, Default)]
pub struct Reviewers {
    /// Reviews tokens.
    pub tokens: Option<kube::Client>,
    /// Reviews access.
    pub access: Option<kube::Client>,
}

impl std::fmt::Debug for Reviewers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviewers")
            .field("tokens", &self.tokens.is_some())
            .field("access", &self.access.is_some())
            .finish()
    }
}

/// Why a request is not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Denial {
    /// The token proves nobody.
    #[error("unauthorized: the token is not valid")]
    Unauthorized,
    /// This user may not.
    #[error("forbidden: user {user:?} cannot {verb} path {path:?}")]
    Forbidden {
        user: String,
        verb: String,
        path: String,
    },
    /// The API server did not say.
    #[error("cannot tell who may read this: {review} failed")]
    Unreviewed {
        review: &'static str,
        source: ReviewError,
    },
}

/// Why there is no review.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    /// No answer in time.
    #[error("no answer within {}s", REVIEW_DEADLINE.as_secs())]
    Deadline,
    /// The API server refused or could not be reached.
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// Decides about each request, and remembers for a while.
#[derive(Debug)]
pub(super) struct Gate {
    config: AccessConfig,
    reviewers: Reviewers,
    in_flight: Semaphore,
    users: TtlCache<Option<Arc<UserInfo>>>,
    verdicts: TtlCache<bool>,
}

impl Gate {
    pub(super) fn new(config: AccessConfig, reviewers: Reviewers) -> Self {
        Self {
            config,
            reviewers,
            in_flight: Semaphore::new(REVIEWS_IN_FLIGHT),
            users: TtlCache::new(REMEMBERED),
            verdicts: TtlCache::new(REMEMBERED),
        }
    }

    /// Lets the request in or says why not. `token` is the bearer token, if the caller sent one; `verb` is the
    /// method in lower case.
    pub(super) async fn admit(&self, verb: &str, path: &str, token: Option<&[u8]>) -> Result<(), Denial> {
        if self
            .config
            .always_allow
            .iter()
            .any(|allowed| allowed.covers(path))
        {
            return Ok(());
        }
        let now = clock::now();
        let user = match (token, &self.reviewers.tokens) {
            (None, _) | (_, None) => Arc::new(anonymous()),
            (Some(token), Some(client)) => {
                self.user(client, token, now).await?.ok_or(Denial::Unauthorized)?
            }
        };
        if user
            .groups
            .iter()
            .flatten()
            .any(|group| group == "system:masters")
        {
            return Ok(());
        }
        if self.may(&user, verb, path, now).await? {
            return Ok(());
        }
        let user = user.username.clone().unwrap_or_default();
        Err(Denial::Forbidden {
            user,
            verb: verb.to_owned(),
            path: path.to_owned(),
        })
    }

    async fn user(
        &self,
        client: &kube::Client,
        token: &[u8],
        now: Instant,
    ) -> Result<Option<Arc<UserInfo>>, Denial> {
        let Some(text) = std::str::from_utf8(token)
            .ok()
            .filter(|token| token.len() <= TOKEN_LIMIT)
        else {
            return Ok(None);
        };
        let asked = digest(token);
        if let Some(user) = self.users.get(&asked, now) {
            return Ok(user);
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(text.to_owned()),
                audiences: None,
            },
            ..TokenReview::default()
        };
        let review = self
            .review(client, &review)
            .await
            .map_err(|source| Denial::Unreviewed {
                review: "TokenReview",
                source,
            })?;
        let status = review.status.unwrap_or_default();
        let user = match (status.authenticated, status.user) {
            (Some(true), Some(user)) => Some(Arc::new(user)),
            _ => None,
        };
        self.users.insert(asked, user.clone(), now, self.config.token_ttl);
        Ok(user)
    }

    async fn may(&self, user: &UserInfo, verb: &str, path: &str, now: Instant) -> Result<bool, Denial> {
        let Some(client) = &self.reviewers.access else {
            return Ok(false);
        };
        let review = SubjectAccessReview {
            spec: access_spec(user, verb, path),
            ..SubjectAccessReview::default()
        };
        let asked = digest(&serde_json::to_vec(&review.spec).unwrap_or_default());
        if let Some(verdict) = self.verdicts.get(&asked, now) {
            return Ok(verdict);
        }
        let review = self
            .review(client, &review)
            .await
            .map_err(|source| Denial::Unreviewed {
                review: "SubjectAccessReview",
                source,
            })?;
        let verdict = review
            .status
            .is_some_and(|status| status.allowed && status.denied != Some(true));
        let ttl = if verdict {
            self.config.allowed_ttl
        } else {
            self.config.denied_ttl
        };
        self.verdicts.insert(asked, verdict, now, ttl);
        Ok(verdict)
    }

    async fn review<R>(&self, client: &kube::Client, review: &R) -> Result<R, ReviewError>
    where
        R: kube::Resource<DynamicType = ()> + serde::Serialize + serde::de::DeserializeOwned,
        R: Clone + std::fmt::Debug,
    {
        let reviewed = async {
            // Never closed; if it were, going on without a place is harmless.
            let _place = self.in_flight.acquire().await.ok();
            Api::all(client.clone())
                .create(&PostParams::default(), review)
                .await
        };
        Ok(tokio::time::timeout(REVIEW_DEADLINE, reviewed)
            .await
            .map_err(|_| ReviewError::Deadline)??)
    }
}

fn anonymous() -> UserInfo {
    UserInfo {
        username: Some("system:anonymous".to_owned()),
        groups: Some(vec!["system:unauthenticated".to_owned()]),
        ..UserInfo::default()
    }
}

fn access_spec(user: &UserInfo, verb: &str, path: &str) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: user.username.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: user.extra.clone(),
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some(path.to_owned()),
            verb: Some(verb.to_owned()),
        }),
        resource_attributes: None,
    }
}

fn digest(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}
