//! placeholder
use anyhow::Result;
#[derive(Debug, clap::Args)]
pub(crate) struct SoakArgs {}
#[derive(Debug, clap::Args)]
pub(crate) struct MemberArgs {}
pub(crate) async fn run(_: SoakArgs) -> Result<bool> {
    Ok(true)
}
pub(crate) async fn run_member(_: MemberArgs) -> Result<()> {
    Ok(())
}
