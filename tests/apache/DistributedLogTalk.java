import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.metadata.DLMetadata;

/**
 * DistributedLog's core library, told what to do by words. The result is a line that begins with
 * "RESULT ". Record N has transaction id N and a content that N alone makes.
 *
 * <p>URI bind ZOOKEEPER LEDGERS: a namespace over the bookies of this tree
 *
 * <p>URI write LOG FIRST COUNT close|leave: as many records; or as a writer that dies
 *
 * <p>URI tail LOG COUNT PAUSE_MS: write with pauses, and read as they come
 *
 * <p>URI read LOG COUNT: from the beginning
 */
public final class DistributedLogTalk {
    private static final int READ_S = 60;

    private DistributedLogTalk() {}

    public static void main(String[] words) throws Exception {
        URI uri = URI.create(words[0]);
        String[] rest = Arrays.copyOfRange(words, 2, words.length);
        if (words[1].equals("bind")) {
            DLMetadata.create(new BKDLConfig(rest[0], rest[1])).create(uri);
            System.out.println("RESULT bound=1");
            return;
        }
        DistributedLogConfiguration conf = new DistributedLogConfiguration();
        conf.setEnsembleSize(3);
        conf.setWriteQuorumSize(3);
        conf.setAckQuorumSize(2);
        // Each record is an entry at once, and a control record tells readers that it is confirmed.
        conf.setImmediateFlushEnabled(true);
        conf.setOutputBufferSize(0);
        conf.setPeriodicFlushFrequencyMilliSeconds(0);
        conf.setZKSessionTimeoutSeconds(6);
        conf.setLockTimeout(30);
        conf.setReadLACLongPollTimeout(10_000);
        Namespace namespace =
                NamespaceBuilder.newBuilder().conf(conf).uri(uri).clientId("talk").build();
        DistributedLogManager log = namespace.openLog(rest[0]);
        String result =
                switch (words[1]) {
                    case "write" -> write(log, rest);
                    case "tail" -> tail(log, rest);
                    case "read" -> read(log, rest);
                    default -> throw new IllegalArgumentException(words[1]);
                };
        System.out.println("RESULT " + result);
        System.out.flush();
        if (rest[rest.length - 1].equals("leave")) {
            // As a writer that died: its log segment stays open.
            Runtime.getRuntime().halt(0);
        }
        log.close();
        namespace.close();
    }

    private static byte[] payload(long number) {
        return ("record " + number + " ").repeat(8).getBytes(StandardCharsets.US_ASCII);
    }

    private static String write(DistributedLogManager log, String[] words) throws Exception {
        long first = Long.parseLong(words[1]);
        long count = Long.parseLong(words[2]);
        AsyncLogWriter writer = log.openAsyncLogWriter().get(READ_S, TimeUnit.SECONDS);
        List<CompletableFuture<DLSN>> sent = new ArrayList<>();
        for (long number = first; number < first + count; number++) {
            sent.add(writer.write(new LogRecord(number, payload(number))));
        }
        long acked = 0;
        for (CompletableFuture<DLSN> one : sent) {
            one.get(READ_S, TimeUnit.SECONDS);
            acked++;
        }
        if (words[3].equals("close")) {
            writer.asyncClose().get(READ_S, TimeUnit.SECONDS);
        }
        return "acked=" + acked;
    }

    private static String tail(DistributedLogManager log, String[] words) throws Exception {
        int count = Integer.parseInt(words[1]);
        int pause = Integer.parseInt(words[2]);
        AsyncLogWriter writer = log.openAsyncLogWriter().get(READ_S, TimeUnit.SECONDS);
        // A log that was never written to has no segment that a reader could wait at.
        writer.write(new LogRecord(0, payload(0))).get(READ_S, TimeUnit.SECONDS);
        AsyncLogReader reader =
                log.openAsyncLogReader(DLSN.InitialDLSN).get(READ_S, TimeUnit.SECONDS);
        long[] acked = new long[count];
        long[] came = new long[count];
        int[] wrong = new int[1];
        Thread follower =
                new Thread(
                        () -> {
                            try {
                                for (int number = 0; number < count; number++) {
                                    LogRecordWithDLSN record =
                                            reader.readNext().get(READ_S, TimeUnit.SECONDS);
                                    came[number] = System.nanoTime();
                                    if (!Arrays.equals(record.getPayload(), payload(number))) {
                                        wrong[0]++;
                                    }
                                }
                            } catch (Exception error) {
                                error.printStackTrace();
                            }
                        });
        follower.start();
        for (int number = 1; number < count; number++) {
            Thread.sleep(pause);
            writer.write(new LogRecord(number, payload(number))).get(READ_S, TimeUnit.SECONDS);
            acked[number] = System.nanoTime();
        }
        follower.join(READ_S * 1000L);
        long[] late = new long[count - 1];
        int followed = 1;
        for (int number = 1; number < count; number++) {
            if (came[number] > 0) {
                followed++;
            }
            late[number - 1] = Math.max(0, came[number] - acked[number]) / 1000;
        }
        Arrays.sort(late);
        reader.asyncClose().get(READ_S, TimeUnit.SECONDS);
        writer.asyncClose().get(READ_S, TimeUnit.SECONDS);
        return String.format("followed=%d wrong=%d late_us=%d latest_us=%d",
                followed, wrong[0], late[late.length / 2], late[late.length - 1]);
    }

    private static String read(DistributedLogManager log, String[] words) throws Exception {
        int count = Integer.parseInt(words[1]);
        AsyncLogReader reader =
                log.openAsyncLogReader(DLSN.InitialDLSN).get(READ_S, TimeUnit.SECONDS);
        int right = 0;
        for (int number = 0; number < count; number++) {
            LogRecordWithDLSN record = reader.readNext().get(READ_S, TimeUnit.SECONDS);
            if (record.getTransactionId() == number
                    && Arrays.equals(record.getPayload(), payload(number))) {
                right++;
            }
        }
        reader.asyncClose().get(READ_S, TimeUnit.SECONDS);
        return "right=" + right + " segments=" + log.getLogSegments().size();
    }
}
