//! Calls of the cloud on behalf of one call of the host: who asks, how long, with what right.

use std::time::Duration;

use bulkhead_plugin::error::{Certainty, PluginError};
use bulkhead_plugin::{Call, Result};

use super::{Inner, PluginConfig};
use crate::cloud::{Answer, Applied, Caller, CloudError, ErrorCode, Object, Op, Page, Query, Written};

/// How long the cloud may take for one call: as usual for clouds' own clients.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Where the cloud does not say when to come back.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// Most pages of one list: more than a cloud can fill.
const MAX_PAGES: usize = 1000;

/// One call of the host, while it asks the cloud.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking<'a> {
    plugin: &'a Inner,
    pub(super) call: &'a Call,
    rpc: &'static str,
}

/// All pages of a list.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) objects: Vec<Object>,
    pub(super) scopes: Vec<String>,
    /// Scopes that could not be read.
    pub(super) failed: Vec<String>,
}

/// Why a write did not go as asked.
#[derive(Debug)]
pub(super) enum WriteError {
    /// It was not started.
    NotStarted(PluginError),
    /// The cloud said so.
    Cloud(CloudError),
}

impl From<WriteError> for PluginError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::NotStarted(error) => error,
            WriteError::Cloud(error) => failure(error),
        }
    }
}

impl<'a> Asking<'a> {
    pub(super) fn new(plugin: &'a Inner, call: &'a Call, rpc: &'static str) -> Self {
        Self { plugin, call, rpc }
    }

    pub(super) fn config(&self) -> &'a PluginConfig {
        &self.plugin.config
    }

    /// Waits until reads see all that was written for a Service.
    pub(super) async fn settled(&self, service: &str) -> Result<()> {
        self.plugin.settling.wait(self.call, service).await
    }

    async fn ask(&self, op: &Op) -> std::result::Result<Answer, CloudError> {
        let epoch = self.call.term().epoch();
        let caller = Caller {
            plugin: self.plugin.name(),
            rpc: self.rpc.to_owned(),
            request_id: self.call.request_id().to_owned(),
            epoch: format!("{}/{}", epoch.lease, epoch.transitions),
        };
        let answer = self
            .plugin
            .api
            .call(&caller, op, PATIENCE.min(self.call.remaining()))
            .await;
        if let Err(error) = &answer {
            self.plugin.known().remember(error);
        }
        answer
    }

    /// One page.
    pub(super) async fn page(&self, query: Query) -> Result<Page> {
        match self.ask(&Op::List(query)).await {
            Ok(Answer::Page(page)) => Ok(page),
            Ok(_) => Err(odd()),
            Err(error) => Err(failure(error)),
        }
    }

    /// All pages.
    pub(super) async fn read(&self, mut query: Query) -> Result<Found> {
        let mut found = Found::default();
        for _ in 0..MAX_PAGES {
            let page = self.page(query.clone()).await?;
            found.objects.extend(page.objects);
            found.scopes = page.scopes;
            for scope in page.failed {
                if !found.failed.contains(&scope) {
                    found.failed.push(scope);
                }
            }
            if page.next.is_empty() {
                return Ok(found);
            }
            query.page_token = page.next;
        }
        Err(PluginError::provider_error("a list of the cloud has no end")
            .with_certainty(Certainty::NotApplied))
    }

    /// One write, if one may start now. `service` is whose it is; empty for none.
    pub(super) async fn write(&self, service: &str, op: Op) -> std::result::Result<Vec<Object>, WriteError> {
        self.call.writing().map_err(WriteError::NotStarted)?;
        match self.ask(&op).await {
            Ok(Answer::Written(Written { objects, settles })) => {
                self.plugin.settling.note(service, settles);
                Ok(objects)
            }
            Ok(_) => Err(WriteError::NotStarted(odd())),
            Err(error) => {
                if error.applied == Applied::Unknown {
                    self.plugin.settling.note_unknown(service);
                }
                Err(WriteError::Cloud(error))
            }
        }
    }
}

fn odd() -> PluginError {
    PluginError::plugin_bug("the cloud answered another question")
}

/// The cloud's refusal in the protocol's words.
pub(super) fn failure(error: CloudError) -> PluginError {
    let certainty = match error.applied {
        Applied::No => Certainty::NotApplied,
        Applied::Unknown => Certainty::Unknown,
    };
    let text = if error.message.is_empty() {
        error.code.name().to_owned()
    } else {
        error.message
    };
    let wait = error.retry_after.unwrap_or(SOON);
    let failure = match error.code {
        ErrorCode::Throttled => PluginError::rate_limited(text, wait),
        ErrorCode::QuotaExceeded => PluginError::quota_exceeded(text),
        ErrorCode::LimitReached => PluginError::limit_reached(text),
        ErrorCode::Unavailable => PluginError::cloud_unavailable(text).with_certainty(certainty),
        ErrorCode::CredentialsInvalid => PluginError::credentials_invalid(text),
        ErrorCode::CredentialsExpired => PluginError::credentials_expired(text),
        ErrorCode::PermissionDenied => PluginError::permission_missing(&text),
        ErrorCode::NotFound | ErrorCode::AlreadyExists | ErrorCode::Conflict => PluginError::conflict(text),
        ErrorCode::InUse => PluginError::in_use(text),
        ErrorCode::Busy => PluginError::operation_in_progress(text, wait),
        ErrorCode::Protected => PluginError::protected(text),
        ErrorCode::PageExpired => PluginError::snapshot_expired(text),
        ErrorCode::BadPageToken => PluginError::bad_page_token(text),
        ErrorCode::Invalid | ErrorCode::Refused => {
            PluginError::provider_error(text).with_certainty(certainty)
        }
    };
    let failure = failure.with_cloud(error.code.name(), error.request_id);
    match error.retry_after {
        Some(wait) => failure.with_retry_after(wait),
        None => failure,
    }
}
