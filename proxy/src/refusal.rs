//! The one place that turns a refusal into a status, a body, headers and a word for logs and metrics.
//!
//! Bodies are `application/problem+json` (RFC 9457). A `detail` says what the client can do about it.

mod recent;

pub use recent::{Recent, Refusals};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use palisade_fence::Token;
use serde::Serialize;
use std::{borrow::Cow, sync::Arc};

use crate::headers;

/// What a problem's `type` begins with (RFC 9457, section 3.1.1); its name follows.
pub const TYPE_PREFIX: &str = "urn:palisade:problem:";

/// What was wrong. Users' scripts hold on to the names and statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "each variant's text stands in `Problem::title` and `Problem::advice`"
)]
pub enum Problem {
    MissingToken,
    MalformedToken,
    AmbiguousPath,
    StaleToken,
    NotHolder,
    Superseded,
    ScopeMismatch,
    CrossesScopes,
    NoScope,
    BadRequest,
    MethodRefused,
    ExpectationFailed,
    RequestTimeout,
    ShuttingDown,
    HandoverPending,
    AuthorityUnavailable,
    AuthorityChanged,
    StorageUnavailable,
    SessionExpired,
    Overloaded,
    UpstreamUnreachable,
    OutcomeUnknown,
}

/// What became of the request (design, G4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Never forwarded, and it never will be.
    Refused,
    /// What the client sees is upstream's own answer.
    Answered,
    /// It may or may not have been applied.
    Unknown,
}

impl Outcome {
    /// The value of `X-Fence-Outcome`, and the label `outcome` of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Answered => "answered",
            Self::Unknown => "unknown",
        }
    }

    /// [`Outcome::as_str`] as a header's value.
    pub const fn value(self) -> HeaderValue {
        HeaderValue::from_static(self.as_str())
    }
}

impl Problem {
    /// Every problem, for the labels of metrics that exist at 0 from the start.
    pub const ALL: [Self; 22] = [
        Self::MissingToken,
        Self::MalformedToken,
        Self::AmbiguousPath,
        Self::StaleToken,
        Self::NotHolder,
        Self::Superseded,
        Self::ScopeMismatch,
        Self::CrossesScopes,
        Self::NoScope,
        Self::BadRequest,
        Self::MethodRefused,
        Self::ExpectationFailed,
        Self::RequestTimeout,
        Self::ShuttingDown,
        Self::HandoverPending,
        Self::AuthorityUnavailable,
        Self::AuthorityChanged,
        Self::StorageUnavailable,
        Self::SessionExpired,
        Self::Overloaded,
        Self::UpstreamUnreachable,
        Self::OutcomeUnknown,
    ];

    /// The name: the end of `type`, and the label `reason` of logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MissingToken => "missing-token",
            Self::MalformedToken => "malformed-token",
            Self::AmbiguousPath => "ambiguous-path",
            Self::StaleToken => "stale-token",
            Self::NotHolder => "not-holder",
            Self::Superseded => "superseded",
            Self::ScopeMismatch => "scope-mismatch",
            Self::CrossesScopes => "crosses-scopes",
            Self::NoScope => "no-scope",
            Self::BadRequest => "bad-request",
            Self::MethodRefused => "method-refused",
            Self::ExpectationFailed => "expectation-failed",
            Self::RequestTimeout => "request-timeout",
            Self::ShuttingDown => "shutting-down",
            Self::HandoverPending => "handover-pending",
            Self::AuthorityUnavailable => "authority-unavailable",
            Self::AuthorityChanged => "authority-changed",
            Self::StorageUnavailable => "storage-unavailable",
            Self::SessionExpired => "session-expired",
            Self::Overloaded => "overloaded",
            Self::UpstreamUnreachable => "upstream-unreachable",
            Self::OutcomeUnknown => "outcome-unknown",
        }
    }

    /// The status that it is answered with; `outcome-unknown` may also be 504, see [`Refusal::timed_out`].
    pub const fn status(self) -> StatusCode {
        match self {
            // RFC 6585, section 3.
            Self::MissingToken => StatusCode::PRECONDITION_REQUIRED,
            Self::MalformedToken | Self::AmbiguousPath | Self::BadRequest => {
                StatusCode::BAD_REQUEST
            }
            Self::StaleToken | Self::NotHolder | Self::Superseded | Self::ScopeMismatch => {
                StatusCode::PRECONDITION_FAILED
            }
            Self::CrossesScopes | Self::NoScope => StatusCode::FORBIDDEN,
            Self::MethodRefused => StatusCode::METHOD_NOT_ALLOWED,
            Self::ExpectationFailed => StatusCode::EXPECTATION_FAILED,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::ShuttingDown
            | Self::HandoverPending
            | Self::AuthorityUnavailable
            | Self::AuthorityChanged
            | Self::StorageUnavailable
            | Self::SessionExpired
            | Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::UpstreamUnreachable | Self::OutcomeUnknown => StatusCode::BAD_GATEWAY,
        }
    }

    /// The outcome that the client is told.
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::OutcomeUnknown => Outcome::Unknown,
            _ => Outcome::Refused,
        }
    }

    /// One line that is the same for every occurrence (RFC 9457, section 3.1.3).
    pub const fn title(self) -> &'static str {
        match self {
            Self::MissingToken => "A write needs a fencing token",
            Self::MalformedToken => "The fencing token is malformed",
            Self::AmbiguousPath => "The target could be read as two different paths",
            Self::StaleToken => "The fencing token is stale",
            Self::NotHolder => "The fencing token is not the lease's current grant",
            Self::Superseded => "A newer token has closed the scope",
            Self::ScopeMismatch => "The request falls in another scope than it says",
            Self::CrossesScopes => "The request touches two scopes",
            Self::NoScope => "No scope covers this request",
            Self::BadRequest => "The request is malformed",
            Self::MethodRefused => "The method is refused",
            Self::ExpectationFailed => "The expectation can't be met",
            Self::RequestTimeout => "The request came too slowly",
            Self::ShuttingDown => "The proxy is shutting down",
            Self::HandoverPending => "Older writes are not settled yet",
            Self::AuthorityUnavailable => "The lease store can't be asked",
            Self::AuthorityChanged => "The lease store is not the one that it was",
            Self::StorageUnavailable => "The floor can't be made durable",
            Self::SessionExpired => "This replica has lost its place",
            Self::Overloaded => "A limit of the proxy is reached",
            Self::UpstreamUnreachable => "Upstream can't be reached",
            Self::OutcomeUnknown => "It is not known whether the request was applied",
        }
    }

    /// What to do about it: the `detail` where the occurrence adds nothing of its own.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::MissingToken => {
                "Take the lease of this scope and send its token as X-Fence-Token with every write."
            }
            Self::MalformedToken => {
                "Send one X-Fence-Token line with 1 to 19 digits, from 1 to 9223372036854775807, and nothing else."
            }
            Self::AmbiguousPath => {
                "Send the path without dot segments, empty segments, backslashes, semicolons and encoded slashes; or \
                 have the operator set paths = \"opaque\" on the route, if the datastore takes the bytes as they are."
            }
            Self::StaleToken => {
                "A newer holder has written. Stop: this lease is lost. Take it again before writing; never adopt the \
                 number in X-Fence-Highest."
            }
            Self::NotHolder => {
                "The lease store does not name this token as the scope's current grant. Take the lease, and check that \
                 its name is the scope's."
            }
            Self::Superseded => {
                "Nothing of this request was sent to upstream. Stop: a newer holder has taken the lease. Take it again \
                 before writing."
            }
            Self::ScopeMismatch => {
                "X-Fence-Scope names another scope than the one that the target falls in. Correct the target or the \
                 header; `palisade route METHOD TARGET` explains."
            }
            Self::CrossesScopes => {
                "Source and Destination lie in different scopes, and one token can't guard both. Copy and delete in two \
                 requests, each with its own token."
            }
            Self::NoScope => {
                "No route maps this write to a scope, or the route denies it. `palisade route METHOD TARGET` explains."
            }
            Self::BadRequest => "Correct the request; nothing of it was forwarded.",
            Self::MethodRefused => "CONNECT and TRACE are never forwarded.",
            Self::ExpectationFailed => {
                "Send no Expect field, or Expect: 100-continue and nothing else."
            }
            Self::RequestTimeout => {
                "The head or the body took longer than the proxy waits. Nothing was forwarded in full; send it again, \
                 faster."
            }
            Self::ShuttingDown => {
                "Nothing was forwarded. Send the request again, to another replica or later."
            }
            Self::HandoverPending => {
                "Nothing was forwarded. The token is right, and the handover goes on; send the request again later."
            }
            Self::AuthorityUnavailable => {
                "Nothing was forwarded. The token is new here and the lease store can't confirm it now; send the \
                 request again later."
            }
            Self::AuthorityChanged => {
                "Nothing was forwarded, and no write will be until an operator has looked at the lease store and run \
                 `palisade new-epoch`."
            }
            Self::StorageUnavailable => {
                "Nothing was forwarded. The proxy's state folder can't be written: full disk or a fault."
            }
            Self::SessionExpired => {
                "Nothing was forwarded. This replica joins the others again by itself; send the request again, to \
                 another replica or later."
            }
            Self::Overloaded => "Nothing was forwarded. Send the request again later.",
            Self::UpstreamUnreachable => {
                "Nothing was sent to upstream. The request may be sent again with the same token."
            }
            Self::OutcomeUnknown => {
                "The request was sent in part or whole and no answer came. It may or may not have been applied, now or \
                 soon. Read what is stored, with the token, before deciding what to do."
            }
        }
    }

    /// After how many seconds a client may try again, where that has a chance (RFC 9110, section 10.2.3).
    pub const fn retry_after(self) -> Option<u32> {
        match self {
            Self::ShuttingDown
            | Self::HandoverPending
            | Self::AuthorityUnavailable
            | Self::SessionExpired
            | Self::Overloaded => Some(1),
            _ => None,
        }
    }

    /// Whether `X-Fence-Highest` goes with it.
    const fn tells_highest(self) -> bool {
        matches!(self, Self::StaleToken | Self::Superseded)
    }
}

/// A refusal, or an unknown outcome, about to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was wrong.
    pub problem: Problem,
    /// The scope that the request fell in, where that is known.
    pub scope: Option<Arc<str>>,
    /// The token that the request carried, if it was one.
    pub token: Option<Token>,
    /// The scope's floor, where it is known.
    pub highest: Option<Token>,
    /// What to do, in words. Never the request's own bytes: they may be anything.
    pub detail: Cow<'static, str>,
    /// Seconds for `Retry-After`, where it has a chance.
    pub retry_after: Option<u32>,
    status: StatusCode,
}

impl Refusal {
    /// A refusal with the problem's own status and advice.
    pub const fn new(problem: Problem) -> Self {
        Self {
            problem,
            scope: None,
            token: None,
            highest: None,
            detail: Cow::Borrowed(problem.advice()),
            retry_after: problem.retry_after(),
            status: problem.status(),
        }
    }

    /// A refusal with words of its own.
    pub fn with_detail(problem: Problem, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            detail: detail.into(),
            ..Self::new(problem)
        }
    }

    /// `outcome-unknown` because time ran out: 504 in place of 502 (RFC 9110, section 15.6.5).
    pub const fn timed_out() -> Self {
        let mut refusal = Self::new(Problem::OutcomeUnknown);
        refusal.status = StatusCode::GATEWAY_TIMEOUT;
        refusal
    }

    /// With the scope that the request fell in.
    pub fn in_scope(self, scope: Option<Arc<str>>) -> Self {
        Self { scope, ..self }
    }

    /// With the token that the request carried.
    pub fn with_token(self, token: Option<Token>) -> Self {
        Self { token, ..self }
    }

    /// With the scope's floor.
    pub fn with_highest(self, highest: Option<Token>) -> Self {
        Self { highest, ..self }
    }

    /// With another time for `Retry-After`, in seconds.
    pub fn retry_in(self, seconds: u32) -> Self {
        Self {
            retry_after: Some(seconds),
            ..self
        }
    }

    /// The status that it is answered with.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The outcome that the client is told.
    pub const fn outcome(&self) -> Outcome {
        self.problem.outcome()
    }

    /// The whole answer. Whether the connection is closed after it is the server's to say.
    pub fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body()));
        *response.status_mut() = self.status;
        let fields = response.headers_mut();
        fields.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        fields.insert(headers::OUTCOME, self.outcome().value());
        // An answer about a moment: nobody may keep it (RFC 9111, section 5.2.2.5).
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(highest) = self.highest.filter(|_| self.problem.tells_highest()) {
            fields.insert(headers::HIGHEST, highest.get().into());
        }
        if let Some(seconds) = self.retry_after {
            fields.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.problem == Problem::MethodRefused {
            // RFC 9110, section 15.5.6: a 405 must say what is allowed.
            fields.insert(
                header::ALLOW,
                HeaderValue::from_static("GET, HEAD, OPTIONS, PUT, POST, PATCH, DELETE"),
            );
        }
        response
    }

    fn body(&self) -> Bytes {
        let body = Body {
            kind: Type(self.problem.name()),
            title: self.problem.title(),
            status: self.status.as_u16(),
            detail: &self.detail,
            scope: self.scope.as_deref(),
            token: self.token.map(Token::get),
            highest: self.highest.map(Token::get),
        };
        // Strings and numbers only: serializing them can't fail.
        serde_json::to_vec(&body).unwrap_or_default().into()
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::new(problem)
    }
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: Type,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    highest: Option<u64>,
}

struct Type(&'static str);

impl Serialize for Type {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{TYPE_PREFIX}{}", self.0))
    }
}

#[cfg(test)]
mod tests;
