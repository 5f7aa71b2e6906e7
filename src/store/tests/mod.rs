//! The store on files, and on disks that fail.

mod asks;
mod copies;
mod crashes;
mod disk;
mod files;
mod records;
