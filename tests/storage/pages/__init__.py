"""Tests of the page cache."""
