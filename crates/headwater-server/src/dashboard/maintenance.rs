//! `/maintenance`: what needs attention, the jobs, backfills, and the doctor.

use axum::extract::{Query, State};
use axum::response::Response;
use headwater::maintenance::Job;
use headwater::store::{Backfill, Finding, JobStatus};
use maud::{Markup, html};
use serde::Deserialize;

use super::act::{Leads, change, counted};
use super::chart;
use super::components::{Head, Pages, Tone, backfill_state, badge, card, empty, findings};
use super::icons::Icon;
use super::layout::Section;
use super::view::{Failure, View};
use super::{format, url};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::problem::Problem;
use crate::sampler::Snapshot;

const PER_PAGE: usize = 20;

/// What each job does.
fn what(job: Job) -> &'static str {
    match job {
        Job::Heads => "Advances heads, closes gaps, delivers scheduled messages",
        Job::DeadDetection => "Declares groups dead that sent no heartbeat",
        Job::Tracking => "Maintains completion records",
        Job::MessageCleanup => "Removes messages whose retention ended",
        Job::Partitions => "Creates partitions ahead and drops old ones",
        Job::SubscriptionCleanup => "Removes old groups, processes and dedup keys",
        Job::EntryCleanup => "Removes old inbox and outbox entries",
        Job::Backfill => "Adds late groups to completion records",
        Job::Survey => "Exports figures of all groups",
    }
}

/// Which part of the findings is shown.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Shown {
    page: Option<usize>,
}

/// `GET /maintenance`
pub(crate) async fn page(Query(shown): Query<Shown>, view: View) -> Result<Response, Failure> {
    let snapshot = view.app.sampler.snapshot().await?;
    let doctor = html! { @if view.can_read(None) { a.btn href="/maintenance/doctor" { (Icon::Maintenance) "Run the doctor" } } };
    let content = html! {
        (Head::new("Maintenance").note("Jobs that one elected process runs, and what an operator should act on.").acts(doctor))
        div.stack {
            (card("Needs attention", html! {}, view.live("attention", attention(&snapshot, &shown))))
            (card("Jobs", run_all(&view), view.live("jobs", jobs(&view, &snapshot.jobs))))
            (card("Backfills", html! {}, view.live("backfills", backfills(&view, &snapshot.backfills))))
        }
    };
    Ok(view.page(Section::Maintenance, "Maintenance", content).await)
}

fn attention(snapshot: &Snapshot, shown: &Shown) -> Markup {
    if snapshot.findings.is_empty() {
        return html! { div.empty.is-small { (Icon::Check) h3 { "Nothing needs attention" } p { "The doctor checks the store itself, which takes longer." } } };
    }
    let pages = Pages::new(shown.page, PER_PAGE, snapshot.findings.len());
    html! {
        (findings(pages.of(&snapshot.findings)))
        (pages.render("findings", |page| url::with_query("/maintenance", &[("page", &page.to_string())])))
    }
}

fn run_all(view: &View) -> Markup {
    html! {
        @if view.can_change(None) {
            form method="post" action="/maintenance/run" { (view.csrf()) input type="hidden" name="job" value="all"; button.btn.is-small { (Icon::Play) "Run all now" } }
        }
    }
}

fn jobs(view: &View, jobs: &[JobStatus]) -> Markup {
    let can_change = view.can_change(None);
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Job" } th scope="col" { "State" } th.num scope="col" { "Last run" } th.num scope="col" { "Took" } th.num scope="col" { "Rows" } th.num scope="col" { "Backlog" } th scope="col" { span.unseen { "Actions" } } } }
            tbody {
                @for job in Job::ALL {
                    @let status = jobs.iter().find(|status| status.job == job);
                    tr data-key=(job.as_str()) {
                        td.name { (job.as_str().replace('_', " ")) small.faint { (what(job)) } }
                        (job_figures(view, status))
                        td.acts {
                            @if can_change {
                                form.inline method="post" action="/maintenance/run" { (view.csrf()) input type="hidden" name="job" value=(job.as_str()); button.btn.is-small.is-quiet { "Run" span.unseen { " " (job.as_str()) } } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn job_figures(view: &View, status: Option<&JobStatus>) -> Markup {
    let Some(status) = status else {
        return html! { td data-label="State" { (badge(Tone::Calm, Icon::Clock, "never ran")) } td.num {} td.num {} td.num {} td.num {} };
    };
    html! {
        td.text data-label="State" {
            @match &status.last_error {
                Some(error) => { (badge(Tone::Bad, Icon::Dead, "failing")) div.soft { span.clip title=(error) { (error) } } }
                None => { (badge(Tone::Good, Icon::Check, "fine")) @if status.failures > 0 { small.faint { " " (counted(status.failures, "failure", "failures")) " so far" } } }
            }
        }
        td.num data-label="Last run" { (format::ago(view.now, status.last_run_at)) }
        td.num data-label="Took" { (format::duration(status.last_duration)) }
        td.num data-label="Rows" { (format::compact(status.rows)) }
        td.num data-label="Backlog" { span.is-zero[status.backlog == 0] { (format::count(status.backlog)) } }
    }
}

fn backfills(view: &View, backfills: &[Backfill]) -> Markup {
    if backfills.is_empty() {
        return empty(
            Icon::Groups,
            "No backfills",
            "With reference counting, a group that subscribes late is added to the completion records of earlier messages.",
            html! {},
        );
    }
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Group" } th scope="col" { "State" } th scope="col" { "Progress" } th.num scope="col" { "Rate" } th.num scope="col" { "Left" } } }
            tbody {
                @for backfill in backfills.iter().take(PER_PAGE) {
                    @let (topic, group) = (backfill.topic.as_str(), backfill.group.as_str());
                    tr data-key={ (topic) "/" (group) "/" (format::exact(backfill.created_at)) } {
                        td.name { a href=(url::group(topic, group)) { (group) } small.faint { (topic) } }
                        td data-label="State" { (backfill_state(backfill.state)) }
                        td.wide { (chart::meter("Backfill", backfill.processed, backfill.total)) small.faint { (format::count(backfill.processed)) " of " (format::count(backfill.total)) } }
                        td.num data-label="Rate" { (format::rate(backfill.rate)) "/s" }
                        td.num data-label="Left" { @match backfill.remaining() { Some(left) => { (format::duration(left)) } None => { span.faint { "–" } } } }
                    }
                }
            }
        }
        @if backfills.len() > PER_PAGE { div.card-foot { "The newest " (PER_PAGE) " of " (format::count(backfills.len() as u64)) ", at " (format::clock(view.now, view.now)) } }
    }
}

/// `GET /maintenance/doctor`: checks everything stored, which takes its time.
pub(crate) async fn doctor(view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Read, None)?;
    let began = tokio::time::Instant::now();
    let found = view.app.headwater.doctor().await?;
    let durability = view.app.headwater.durability().await?;
    let attention = view.app.headwater.attention().await?;
    let took = format!("The store was checked in {}.", format::duration(began.elapsed()));
    let again = html! { a.btn href="/maintenance/doctor" { (Icon::Retry) "Run again" } };
    let content = html! {
        (Head::new("Doctor").under(&[("Maintenance", "/maintenance".into())]).note(&took).acts(again))
        div.stack {
            (section("Errors of the store", &found, "The store is sound", "Every invariant holds."))
            (section("Durability", &durability, "Durable as promised", "No setting of the database weakens what survives a crash."))
            (section("Needs attention", &attention, "Nothing needs attention", "Maintenance runs, and every group is served."))
        }
    };
    Ok(view.page(Section::Maintenance, "Doctor", content).await)
}

fn section(title: &str, found: &[Finding], fine: &str, text: &str) -> Markup {
    card(
        title,
        html! { @if !found.is_empty() { span.count.is-warn { (format::count(found.len() as u64)) } } },
        html! {
            @if found.is_empty() { div.empty.is-small { (Icon::Check) h3 { (fine) } p { (text) } } }
            @else { (findings(&found[..found.len().min(200)])) }
        },
    )
}

/// Which job.
#[derive(Debug, Deserialize)]
pub(crate) struct Wanted {
    job: String,
}

/// `POST /maintenance/run`
pub(crate) async fn run(State(app): State<App>, Submitted { visitor, form }: Submitted<Wanted>) -> Response {
    let runs = async {
        let jobs: Vec<Job> =
            Job::ALL.into_iter().filter(|job| form.job == "all" || form.job == job.as_str()).collect();
        if jobs.is_empty() {
            return Err(Problem::invalid("job", "there is no such job").into());
        }
        let done = app.acting(&visitor.caller).maintenance().run_once(&jobs).await?;
        let failed: Vec<_> = done
            .iter()
            .filter_map(|run| Some(format!("{}: {}", run.job.as_str(), run.error.as_ref()?)))
            .collect();
        if !failed.is_empty() {
            return Err(Problem::invalid("jobs", failed.join("; ")).into());
        }
        let rows: u64 = done.iter().map(|run| run.rows).sum();
        let ran = if jobs.len() == 1 {
            format!("Job {} ran", jobs[0].as_str())
        } else {
            format!("{} jobs ran", jobs.len())
        };
        Ok(format!("{ran}, and changed {}.", counted(rows, "row", "rows")))
    };
    change(&app, &visitor, (Scope::Admin, None), Leads::to("/maintenance"), runs).await
}
