--exports Entry
-- An entry of a list in which jobs wait: the job, or `job!n` for one that was taken out of a list n times and waits
-- again. A list cannot lose an entry in its middle. So an entry counts only if the record confirms it: its job waits,
-- is of this queue, and this is its entry. Any other is a tombstone, which means nothing; the claim that meets it drops it.
Entry = {}

function Entry.job(entry)
  if not string.find(entry, '!', 1, true) then return entry end
  return string.match(entry, '^(.*)!%d+$') or entry
end

function Entry.of(id, record)
  return record.entry and id .. '!' .. record.entry or id
end
