//! The pipeline as its users see it: services, files, topics and indexes together, on both databases.
