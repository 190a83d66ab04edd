"""Schedules: when they fire (`cron`, `timetable`), what they are (`plan`), and who fires them (`runner`)."""
