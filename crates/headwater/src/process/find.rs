//! Processes for operators: found by type, status or a part of their texts, page by page.

use jiff::Timestamp;
use uuid::Uuid;

use super::rows;
use super::{ProcessInstance, ProcessStatus, Processes, check_limit};
use crate::error::Result;
use crate::name::check_name;
use crate::store::repository::Verb;
use crate::transaction::Value;

/// A selection of processes: all, or those that match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessSelection {
    process_type: Option<String>,
    status: Option<ProcessStatus>,
    contains: Option<String>,
    before: Option<ProcessPlace>,
    without_data: bool,
}

/// The place of a process in lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessPlace {
    /// When it was inserted.
    pub created_at: Timestamp,
    /// Its id.
    pub id: Uuid,
}

impl ProcessSelection {
    /// Only those of this type.
    #[must_use]
    pub fn process_type(mut self, process_type: impl Into<String>) -> Self {
        self.process_type = Some(process_type.into());
        self
    }

    /// Only those of this status.
    #[must_use]
    pub fn status(mut self, status: ProcessStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Only those whose type, business key or current step contains this text; upper and lower case are the same in ASCII.
    #[must_use]
    pub fn contains(mut self, text: impl Into<String>) -> Self {
        self.contains = Some(text.into());
        self
    }

    /// Only those that are older than this place: the next page.
    #[must_use]
    pub fn before(mut self, place: ProcessPlace) -> Self {
        self.before = Some(place);
        self
    }

    /// Without their data, which may be large.
    #[must_use]
    pub fn without_data(mut self) -> Self {
        self.without_data = true;
        self
    }
}

impl ProcessInstance {
    /// Its place in lists, from which the next page follows; `None` before it is stored.
    pub fn place(&self) -> Option<ProcessPlace> {
        self.created_at().map(|created_at| ProcessPlace { created_at, id: self.id() })
    }
}

impl Processes {
    /// The processes of a selection, newest first, at most `limit` (1 to 10,000).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// let processes = headwater.processes();
    /// for key in ["o-1", "o-2", "p-1"] {
    ///     processes.start("order").business_key(key).await?;
    /// }
    /// let newest = processes.find(1, |all| all.contains("O-")).await?;
    /// assert_eq!(newest[0].business_key(), Some("o-2"));
    /// let place = newest[0].place().expect("it is stored");
    /// assert_eq!(processes.find(10, |all| all.contains("o-").before(place)).await?.len(), 1);
    /// # headwater.close().await }
    /// ```
    pub async fn find(
        &self,
        limit: u32,
        choose: impl FnOnce(ProcessSelection) -> ProcessSelection,
    ) -> Result<Vec<ProcessInstance>> {
        check_limit(limit)?;
        let selection = choose(ProcessSelection::default());
        let ProcessSelection { process_type, status, contains, before, without_data } = selection;
        process_type.as_deref().map_or(Ok(()), |name| check_name("process_type", name))?;
        contains.as_deref().map_or(Ok(()), |text| check_name("search", text))?;
        let mut found = Vec::new();
        for status in status.map_or_else(|| ProcessStatus::ALL.to_vec(), |status| vec![status]) {
            let params: Vec<Value> = vec![
                status.as_str().into(),
                process_type.clone().into(),
                contains.clone().into(),
                before.map(|place| place.created_at.as_microsecond()).into(),
                before.map_or(Value::Null, |place| self.id(place.id)),
                (!without_data).into(),
                limit.into(),
            ];
            for row in &self.repository.run(Verb::ProcessFind, params).await? {
                found.push(rows::process_of(row)?);
            }
        }
        // Each status has its newest: the newest of all are among them.
        found.sort_by_key(|process| std::cmp::Reverse((process.created_at(), process.id())));
        found.truncate(limit as usize);
        Ok(found)
    }

    /// The processes of a type, of a status, of both or all, newest first, at most `limit`.
    pub async fn list(
        &self,
        process_type: Option<&str>,
        status: Option<ProcessStatus>,
        limit: u32,
    ) -> Result<Vec<ProcessInstance>> {
        self.find(limit, |mut all| {
            all = process_type.map_or(all.clone(), |name| all.process_type(name));
            status.map_or(all.clone(), |status| all.status(status))
        })
        .await
    }
}
