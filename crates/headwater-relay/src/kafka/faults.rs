//! Errors of Kafka by what the relay does about them.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::sink::{Delivery, SinkError};

/// An error of Kafka.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    /// A record is refused for good. A broker refuses a request as a whole: only if the record was alone in it, it is this one.
    Refused(String),
    /// An operator has to act.
    Misconfigured(String),
    /// The brokers cannot be reached or cannot store anything now.
    Unavailable(String),
    /// Another producer has this transactional id.
    Fenced(String),
    /// It was not sent, because an earlier record of the call failed.
    NotSent(String),
    /// Another attempt may succeed.
    Failed(String),
}

impl Fault {
    /// What became of the record.
    pub(super) fn delivery(&self) -> Delivery {
        match self {
            Fault::Refused(reason) => Delivery::Refused { reason: reason.clone() },
            Fault::Unavailable(reason) | Fault::NotSent(reason) => {
                Delivery::Unconfirmed { reason: reason.clone() }
            }
            Fault::Misconfigured(reason) | Fault::Fenced(reason) | Fault::Failed(reason) => {
                Delivery::Failed { reason: reason.clone(), retry_after: None }
            }
        }
    }

    /// What it means for the sink as a whole.
    pub(super) fn sink_error(self) -> SinkError {
        match self {
            Fault::Misconfigured(text) => SinkError::Misconfigured(text),
            Fault::Refused(text)
            | Fault::Unavailable(text)
            | Fault::Fenced(text)
            | Fault::NotSent(text)
            | Fault::Failed(text) => SinkError::Unavailable(text),
        }
    }
}

/// Sorts an error code. `last_error` is what the client last reported about its connections: with wrong credentials, records only
/// wait, and that report has the reason.
pub(super) fn classify(code: Code, last_error: &Option<KafkaError>, what: &str) -> Fault {
    let waits = matches!(
        code,
        Code::MessageTimedOut
            | Code::OperationTimedOut
            | Code::PurgeQueue
            | Code::PurgeInflight
            | Code::AllBrokersDown
            | Code::BrokerTransportFailure
            | Code::TimedOutQueue
    );
    let behind = last_error.as_ref().filter(|_| waits).and_then(KafkaError::rdkafka_error_code);
    let code = behind.filter(|code| is_misconfigured(*code)).unwrap_or(code);
    let text = |do_what: &str| format!("{what}: {code}; {do_what}");
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            Fault::Refused(text(
                "raise max.message.bytes of the topic and message.max.bytes in the URL, or make the message smaller",
            ))
        }
        Code::InvalidRecord | Code::InvalidMessage => {
            Fault::Refused(text("the topic does not accept it: a compacted topic demands a key"))
        }
        Code::ProducerFenced | Code::Fenced | Code::InvalidProducerEpoch => {
            Fault::Fenced(text("another process relays with the same id"))
        }
        code if is_misconfigured(code) => Fault::Misconfigured(text(advice(code))),
        Code::Fatal | Code::GaplessGuarantee => {
            Fault::NotSent(format!("{what}: not sent, because an earlier record of the call failed"))
        }
        Code::PurgeQueue | Code::PurgeInflight => {
            let why = last_error.as_ref().map_or_else(String::new, |error| format!(" ({error})"));
            Fault::Unavailable(format!("{what}: not confirmed in time{why}"))
        }
        code if waits || is_unavailable(code) => Fault::Unavailable(text("the brokers are asked again")),
        _ => Fault::Failed(format!("{what}: {code}")),
    }
}

/// The same for an error of the client.
pub(super) fn of(error: &KafkaError, last_error: &Option<KafkaError>, what: &str) -> Fault {
    match error.rdkafka_error_code() {
        Some(code) => classify(code, last_error, what),
        None => Fault::Misconfigured(format!("{what}: {error}")),
    }
}

fn is_misconfigured(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::UnknownPartition
            | Code::InvalidTopic
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedSASLMechanism
            | Code::IllegalSASLState
            | Code::SecurityDisabled
            | Code::SSL
            | Code::PolicyViolation
            | Code::InvalidTransactionTimeout
            | Code::UnsupportedVersion
            | Code::UnsupportedFeature
    )
}

fn advice(code: Code) -> &'static str {
    match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::InvalidTopic => {
            "create the topic, or correct the URL"
        }
        Code::TopicAuthorizationFailed => "allow the user of the URL to describe and write the topic",
        Code::GroupAuthorizationFailed => "allow the user of the URL to read the group of the relay",
        Code::ClusterAuthorizationFailed => "allow the user of the URL idempotent writes",
        Code::TransactionalIdAuthorizationFailed => "allow the user of the URL to use the transactional id",
        Code::Authentication | Code::SaslAuthenticationFailed => {
            "correct the user and the password of the URL"
        }
        Code::UnsupportedSASLMechanism | Code::IllegalSASLState | Code::SecurityDisabled | Code::SSL => {
            "correct security.protocol and sasl.mechanisms of the URL"
        }
        Code::InvalidTransactionTimeout => "raise transaction.max.timeout.ms of the brokers",
        _ => "see the brokers' log",
    }
}

fn is_unavailable(code: Code) -> bool {
    matches!(
        code,
        Code::Resolve
            | Code::RequestTimedOut
            | Code::BrokerNotAvailable
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::NetworkException
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
            | Code::KafkaStorageError
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::ThrottlingQuotaExceeded
            | Code::UnstableOffsetCommit
            | Code::ConcurrentTransactions
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        for (code, expected) in [
            (Code::UnknownTopicOrPartition, "create the topic"),
            (Code::TopicAuthorizationFailed, "allow the user"),
            (Code::SaslAuthenticationFailed, "correct the user and the password"),
        ] {
            let Fault::Misconfigured(text) = classify(code, &None, "topic a") else { panic!("{code}") };
            assert!(text.starts_with("topic a: ") && text.contains(expected), "{text}");
        }
        assert!(matches!(
            classify(Code::MessageSizeTooLarge, &None, "a").delivery(),
            Delivery::Refused { .. }
        ));
        assert!(matches!(
            classify(Code::NotEnoughReplicas, &None, "a").sink_error(),
            SinkError::Unavailable(_)
        ));
        assert!(matches!(classify(Code::GaplessGuarantee, &None, "a"), Fault::NotSent(_)));
        assert!(matches!(classify(Code::ProducerFenced, &None, "a"), Fault::Fenced(_)));
    }

    #[test]
    fn record_that_only_waits_has_the_reason_of_the_connection() {
        let wrong = Some(KafkaError::Global(Code::Authentication));
        assert!(matches!(classify(Code::PurgeQueue, &wrong, "a"), Fault::Misconfigured(_)));
        let down = Some(KafkaError::Global(Code::BrokerTransportFailure));
        assert!(matches!(classify(Code::PurgeQueue, &down, "a"), Fault::Unavailable(_)));
        assert!(matches!(classify(Code::NotEnoughReplicas, &wrong, "a"), Fault::Unavailable(_)));
    }
}
