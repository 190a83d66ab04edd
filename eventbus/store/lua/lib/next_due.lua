--needs shard
--exports next_due
-- One index of all that has a time: `due`. Its members are `q:<queue>`, at the time of the first delayed job of the
-- queue or before it; deadlines of trees; and chores, which are due at once (`chore_list.lua`).
next_due = {}

-- The earliest due time, ms, or -1.
function next_due.read()
  return tonumber(redis.call('ZRANGE', shard.root .. ':due', 0, 0, 'WITHSCORES')[2] or -1)
end
