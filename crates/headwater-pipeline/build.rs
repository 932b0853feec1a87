//! Compiles the contracts without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "proto/pipeline.proto";
    println!("cargo:rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["proto"])?;
    prost_build::Config::new().bytes(["."]).btree_map(["."]).enable_type_names().compile_fds(descriptors)?;
    Ok(())
}
