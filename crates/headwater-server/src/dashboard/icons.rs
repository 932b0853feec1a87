//! The icons, as SVG in the page: they take the colour of the text beside them.

use maud::{Markup, PreEscaped, html};

/// An icon. What it means is always written beside it, so that screen readers skip it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Icon {
    Active,
    Alert,
    Audit,
    Back,
    Cancelled,
    Check,
    Clock,
    Dead,
    DeadLetters,
    Forward,
    Groups,
    Maintenance,
    Menu,
    Messages,
    Moon,
    Outbox,
    Overview,
    Pause,
    Pipeline,
    Play,
    Plus,
    Processes,
    Publish,
    Retry,
    Scheduled,
    Seek,
    Settings,
    Step,
    Topics,
    Trash,
    Undo,
}

impl Icon {
    /// The shapes, in a square of 20, drawn with lines.
    fn shapes(self) -> &'static str {
        match self {
            Icon::Active => r#"<circle cx="10" cy="10" r="5.5" fill="currentColor" stroke="none"/>"#,
            Icon::Alert => r#"<path d="M10 3.2 18 17H2z"/><path d="M10 8.2v4M10 14.6v.1"/>"#,
            Icon::Audit => r#"<path d="M5 2.8h7.2L16 6.6v10.6H5z"/><path d="M8 9.6h5M8 12.8h5"/>"#,
            Icon::Back => r#"<path d="M12 4.5 6.5 10l5.5 5.5"/>"#,
            Icon::Cancelled => r#"<circle cx="10" cy="10" r="6.2"/><path d="M5.8 14.2l8.4-8.4"/>"#,
            Icon::Check => r#"<path d="m4 10.6 4 4 8-9"/>"#,
            Icon::Clock => r#"<circle cx="10" cy="10" r="7.2"/><path d="M10 6v4.3l3 1.8"/>"#,
            Icon::Dead => r#"<path d="m5 5 10 10M15 5 5 15"/>"#,
            Icon::DeadLetters => {
                r#"<path d="M2.8 5h14.4v10.5H2.8z"/><path d="m2.8 5.4 7.2 5.4 7.2-5.4"/><path d="m12.5 12.8 3 3M15.5 12.8l-3 3"/>"#
            }
            Icon::Forward => r#"<path d="M8 4.5 13.5 10 8 15.5"/>"#,
            Icon::Groups => {
                r#"<circle cx="7" cy="7" r="2.8"/><path d="M1.8 16.4c0-3 2.2-5 5.2-5s5.2 2 5.2 5"/><path d="M12.6 4.6a2.6 2.6 0 0 1 0 5M14.4 11.7c2.3.5 3.8 2.3 3.8 4.7"/>"#
            }
            Icon::Maintenance => {
                r#"<path d="M12.2 3.1a4.3 4.3 0 0 0-4 6L2.9 14.4l2.7 2.7 5.3-5.3a4.3 4.3 0 0 0 5.6-5.2l-2.6 2.6-2.6-.6-.6-2.6 2.6-2.6a4 4 0 0 0-1.1-.3z"/>"#
            }
            Icon::Menu => r#"<path d="M3 5.5h14M3 10h14M3 14.5h14"/>"#,
            Icon::Messages => r#"<path d="M2.8 5h14.4v10.5H2.8z"/><path d="m2.8 5.4 7.2 5.4 7.2-5.4"/>"#,
            Icon::Moon => r#"<path d="M16.5 12.2A7 7 0 0 1 7.8 3.5a7 7 0 1 0 8.7 8.7z"/>"#,
            Icon::Outbox => {
                r#"<path d="M2.8 11.5v5.2h14.4v-5.2"/><path d="M10 12.5V3.2M6.4 6.6 10 3l3.6 3.6"/>"#
            }
            Icon::Overview => r#"<path d="M2.8 10.5h3.4L8 5l4 10 1.8-4.5h3.4"/>"#,
            Icon::Pause => r#"<path d="M7 4.5v11M13 4.5v11" stroke-width="2.4"/>"#,
            Icon::Pipeline => {
                r#"<circle cx="4.4" cy="10" r="1.9"/><circle cx="15.6" cy="5" r="1.9"/><circle cx="15.6" cy="15" r="1.9"/><path d="M6.2 9.2 13.8 5.8M6.2 10.8l7.6 3.4"/>"#
            }
            Icon::Play => r#"<path d="M6.5 4.2v11.6L15.6 10z" fill="currentColor"/>"#,
            Icon::Plus => r#"<path d="M10 4v12M4 10h12"/>"#,
            Icon::Processes => {
                r#"<path d="M3 4.8h5.4v4H3zM11.6 11.2H17v4h-5.4z"/><path d="M8.4 6.8h3.8a2 2 0 0 1 2 2v2.4"/>"#
            }
            Icon::Publish => r#"<path d="m2.8 9.2 14.4-6-5.6 14.2-2.8-5.6z"/><path d="m8.8 11.8 4-4"/>"#,
            Icon::Retry => r#"<path d="M16.2 10a6.2 6.2 0 1 1-1.9-4.5"/><path d="M16.6 2.8v3.6H13"/>"#,
            Icon::Scheduled => r#"<path d="M3 4.8h14v12H3z"/><path d="M3 8.4h14M6.6 2.8v3M13.4 2.8v3"/>"#,
            Icon::Seek => {
                r#"<path d="M3 10h14"/><circle cx="12.4" cy="10" r="2.6" fill="currentColor"/><path d="M3 7v6"/>"#
            }
            Icon::Settings => {
                r#"<path d="M3 6h7.4M14.6 6H17M3 14h2.4M9.6 14H17"/><circle cx="12.5" cy="6" r="2"/><circle cx="7.5" cy="14" r="2"/>"#
            }
            Icon::Step => r#"<circle cx="10" cy="10" r="4"/>"#,
            Icon::Topics => {
                r#"<path d="M2.8 6c2.4-2 4.8-2 7.2 0s4.8 2 7.2 0M2.8 10.2c2.4-2 4.8-2 7.2 0s4.8 2 7.2 0M2.8 14.4c2.4-2 4.8-2 7.2 0s4.8 2 7.2 0"/>"#
            }
            Icon::Trash => {
                r#"<path d="M3.5 5.4h13M8 5V3.2h4V5M5.2 5.6l.8 11h8l.8-11M8.4 8.6v5M11.6 8.6v5"/>"#
            }
            Icon::Undo => {
                r#"<path d="M6.6 4.2 3 7.8l3.6 3.6"/><path d="M3.4 7.8h8.2a4.4 4.4 0 0 1 0 8.8H7"/>"#
            }
        }
    }
}

impl maud::Render for Icon {
    fn render(&self) -> Markup {
        html! {
            svg viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" {
                (PreEscaped(self.shapes()))
            }
        }
    }
}

/// The mark of Headwater: a spring that becomes a stream.
pub(crate) fn mark() -> Markup {
    html! {
        svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" aria-hidden="true" {
            path d="M12 2.2c3.4 4 5 6.4 5 8.6a5 5 0 0 1-10 0c0-2.2 1.6-4.6 5-8.6z" fill="currentColor" stroke="none" {}
            path d="M2.5 18.2c3.2-2.4 6.3-2.4 9.5 0s6.3 2.4 9.5 0" {}
            path d="M5.5 21.8c2.2-1.4 4.3-1.4 6.5 0s4.3 1.4 6.5 0" opacity=".55" {}
        }
    }
}
